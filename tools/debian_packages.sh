#!/usr/bin/env bash
# Installs the Debian packages that the tests and the demo use, or names the one command that does.
set -euo pipefail

declare -A needed=(
    [qemu-aarch64]=qemu-user
    [dot]=graphviz
    [gcc]=gcc
    [g++]=g++
    [cmake]=cmake
    [make]=make
    [llvm-objdump]=llvm
)
missing=()
for program in "${!needed[@]}"; do
    command -v "$program" >/dev/null || missing+=("${needed[$program]}")
done
[ -e /usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1 ] || missing+=(libc6-arm64-cross)
[ -d /usr/share/pocketsphinx/test/data ] || missing+=(pocketsphinx-testdata) # recorded speech
[ ${#missing[@]} -eq 0 ] && exit 0

command="apt-get install -y --no-install-recommends $(printf '%s\n' "${missing[@]}" | sort | tr '\n' ' ')"
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q && $command
else
    echo "Some system packages are missing. Install them with this command, then repeat:" >&2
    echo "    sudo $command" >&2
    exit 1
fi

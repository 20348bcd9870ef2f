"""``aotc targets``: what can be built for."""

from __future__ import annotations

from rich.table import Table

from aotc.cli.common import AsJson, console, print_json, version_text


def targets(as_json: AsJson = False) -> None:
    """List the targets.

    Example: `aotc targets --json`
    """
    from aotc import targets as catalogue

    known = [catalogue.get(name) for name in catalogue.NAMES]
    if as_json:
        fields = (
            "name",
            "description",
            "triple",
            "mcpu",
            "features",
            "cores",
            "vector_bits",
            "l1_bytes",
            "l2_bytes",
            "jetpack",
            "jetpacks",
        )
        print_json([{field: getattr(target, field) for field in fields} | {"glibc": version_text(target.glibc)} for target in known])
        return
    table = Table(title="Targets", title_justify="left")
    for heading in ("name", "CPU", "vectors", "glibc", "JetPack"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what it is")
    for target in known:
        jetpacks = ", ".join(f"[bold]{release}[/]" if release == target.jetpack else release for release in target.jetpacks)
        glibc = version_text(target.glibc)
        table.add_row(target.name, target.mcpu, f"{target.vector_bits} bit", glibc, jetpacks or "-", target.description)
    console.print(table, highlight=False)
    console.print("[dim]jetson is short for jetson-orin; the JetPack in bold is the default, --jetpack chooses another.[/]")

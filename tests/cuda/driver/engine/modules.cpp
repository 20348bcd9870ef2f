#include "modules.h"

#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>

#include "device.h"

namespace software_cuda {

namespace {

constexpr unsigned MACHINE_CUDA = 190;
std::set<LoadedModule *> modules;

struct Cubin {
  const unsigned char *image;
  Elf64_Ehdr header;
  Elf64_Shdr section(unsigned i) const {
    Elf64_Shdr section;
    std::memcpy(&section, image + header.e_shoff + i * sizeof section, sizeof section);
    return section;
  }
  size_t bytes() const {
    size_t end = std::max(header.e_shoff + header.e_shnum * sizeof(Elf64_Shdr), header.e_phoff + header.e_phnum * sizeof(Elf64_Phdr));
    for (unsigned i = 0; i < header.e_shnum; ++i)
      if (section(i).sh_type != SHT_NOBITS) end = std::max(end, section(i).sh_offset + section(i).sh_size);
    return end;
  }
  // CUDA 13 has moved the architecture one byte up, with a new ABI version.
  int sm() const { return static_cast<int>(header.e_flags >> (header.e_ident[EI_ABIVERSION] >= 8 ? 8 : 0) & 0xFF); }
  // Section .text.NAME has the registers of a thread in the top byte of its info.
  unsigned registers(const std::string &kernel) const {
    if (!header.e_shnum) return 0;
    const char *names = reinterpret_cast<const char *>(image + section(header.e_shstrndx).sh_offset);
    for (unsigned i = 0; i < header.e_shnum; ++i)
      if (names + section(i).sh_name == ".text." + kernel) return section(i).sh_info >> 24;
    return 0;
  }
};

unsigned shared_bytes(const Module &record) {
  unsigned total = 0;
  for (unsigned char *at = record.shared_begin; at < record.shared_end; at += SHARED_GAP) {
    uint64_t header[3];
    std::memcpy(header, at, sizeof header);
    if (header[0] == SHARED_MAGIC) total += static_cast<unsigned>(header[2]);
  }
  return total;
}

// What the driver of a release reads (PTX ISA, release notes): 85 for 8.5.
int newest_ptx() {
  const int version = driver_version();
  return version >= 13000 ? 90 : version >= 12060 ? 85 : version >= 11080 ? 78 : version >= 11040 ? 74 : 65;
}

// PTX is for its compute capability and newer ones, and begins with `.version 8.5` and `.target sm_87`.
Status check_ptx(const char *text) {
  const char *version = std::strstr(text, "\n.version "), *target = std::strstr(text, "\n.target sm_");
  int major = 0, minor = 0, sm = 0;
  if (!version || std::sscanf(version, "\n.version %d.%d", &major, &minor) != 2) return CUDA_ERROR_INVALID_PTX;
  if (!target || std::sscanf(target, "\n.target sm_%d", &sm) != 1) return CUDA_ERROR_INVALID_PTX;
  if (major * 10 + minor > newest_ptx()) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  return sm > device_sm() ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_SUCCESS;
}

Status check_cubin(Cubin &cubin) {
  std::memcpy(&cubin.header, cubin.image, sizeof cubin.header);
  if (cubin.header.e_machine != MACHINE_CUDA) return CUDA_ERROR_INVALID_IMAGE;
  return cubin.sm() == device_sm() ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

Status open_library(const unsigned char *image, size_t bytes, LoadedModule &module) {
  const char *folder = std::getenv("AOTC_SOFTWARE_CUDA");
  const std::string path = (folder ? std::string(folder) + "/" : "") + sha256(image, bytes) + ".so";
  module.library = folder ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!module.library) {
    std::fprintf(stderr, "software CUDA: %s\n", folder ? dlerror() : "AOTC_SOFTWARE_CUDA does not name the folder of host code");
    return CUDA_ERROR_FILE_NOT_FOUND;
  }
  module.record = static_cast<const Module *>(dlsym(module.library, "software_cuda_module"));
  return module.record ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

}  // namespace

Status load_module(const void *image, LoadedModule *&result) {
  Cubin cubin{static_cast<const unsigned char *>(image), {}};
  const bool ptx = std::memcmp(image, "//", 2) == 0;
  if (!ptx && std::memcmp(image, ELFMAG, SELFMAG) != 0) return CUDA_ERROR_INVALID_IMAGE;
  if (Status status = ptx ? check_ptx(static_cast<const char *>(image)) : check_cubin(cubin)) return status;
  auto module = std::make_unique<LoadedModule>();
  if (Status status = open_library(cubin.image, ptx ? std::strlen(static_cast<const char *>(image)) : cubin.bytes(), *module)) return status;
  const unsigned shared = shared_bytes(*module->record);
  for (unsigned i = 0; i < module->record->kernel_count; ++i) {
    const Kernel &kernel = module->record->kernels[i];
    const unsigned limit = static_cast<unsigned>(device_attribute(MAX_SHARED_MEMORY_PER_BLOCK));
    module->functions[kernel.name] = {module.get(), &kernel, ptx ? 0 : cubin.registers(kernel.name), shared, limit > shared ? limit - shared : 0};
  }
  result = *modules.insert(module.release()).first;
  return CUDA_SUCCESS;
}

void unload_module(LoadedModule *module) {
  modules.erase(module);
  dlclose(module->library);
  delete module;
}

void unload_all_modules() {
  while (!modules.empty()) unload_module(*modules.begin());
}

bool is_module(const void *handle) { return modules.count(static_cast<LoadedModule *>(const_cast<void *>(handle))) != 0; }

Status check_limits(const Function &function, const dim3 &grid, const dim3 &block, unsigned shared_bytes) {
  auto within = [](unsigned value, int attribute) { return value > 0 && value <= static_cast<unsigned>(device_attribute(attribute)); };
  if (!within(grid.x, MAX_GRID_DIM_X) || !within(grid.y, MAX_GRID_DIM_Y) || !within(grid.z, MAX_GRID_DIM_Z)) return CUDA_ERROR_INVALID_VALUE;
  if (!within(block.x, MAX_BLOCK_DIM_X) || !within(block.y, MAX_BLOCK_DIM_Y) || !within(block.z, MAX_BLOCK_DIM_Z)) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads > MAX_THREADS || threads > function.kernel->max_threads) return CUDA_ERROR_INVALID_VALUE;
  if (shared_bytes > function.dynamic_limit) return CUDA_ERROR_INVALID_VALUE;
  if (function.static_shared > static_cast<unsigned>(device_attribute(MAX_SHARED_MEMORY_PER_BLOCK))) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t registers = (function.registers + 7) / 8 * 8 * ((threads + WARP - 1) / WARP * WARP);
  if (registers > static_cast<unsigned>(device_attribute(MAX_REGISTERS_PER_BLOCK))) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  return CUDA_SUCCESS;
}

}  // namespace software_cuda

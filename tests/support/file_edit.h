#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace thimble {

/// Makes `text` the whole of a file.
inline void WriteText(const std::filesystem::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

/// The bytes of a file.
inline std::string ReadBytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// Replaces the bytes at `offset`.
inline void Overwrite(const std::filesystem::path& path, size_t offset, const std::string& bytes) {
  std::string text = ReadBytes(path);
  WriteText(path, text.replace(offset, bytes.size(), bytes));
}

/// Cuts the last `bytes` bytes off.
inline void Truncate(const std::filesystem::path& path, size_t bytes) {
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - bytes);
}

}  // namespace thimble

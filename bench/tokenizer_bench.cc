/// Encoding and decoding speed, in input bytes a second on one thread.
///
/// Needs a folder with Kimi's tiktoken.model: $THIMBLE_TOKENIZER, else
/// $THIMBLE_SHARED/data/tokenizer, else ../shared/data/tokenizer beside the source tree. The
/// English text is the King James Bible as the `bible` program prints it, where that is installed,
/// else generated words.

#include <benchmark/benchmark.h>
#include <stdio.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/piece_merger.h"
#include "text/rank_file.h"
#include "text/tokenizer.h"

namespace {

using namespace thimble;
namespace fs = std::filesystem;

constexpr size_t kTextBytes = size_t{4} << 20;

fs::path TokenizerFolder() {
  if (const char* folder = std::getenv("THIMBLE_TOKENIZER")) return folder;
  const char* shared = std::getenv("THIMBLE_SHARED");
  return (shared ? fs::path(shared) : fs::path(THIMBLE_SOURCE_DIR) / ".." / "shared") / "data" /
         "tokenizer";
}

/// Null if the file is absent.
const Tokenizer* Kimi() {
  static const std::optional<Tokenizer> tokenizer =
      fs::exists(TokenizerFolder() / "tiktoken.model")
          ? std::optional<Tokenizer>(Tokenizer::Load(TokenizerFolder()))
          : std::nullopt;
  return tokenizer ? &*tokenizer : nullptr;
}

bool Skip(benchmark::State& state) {
  if (Kimi()) return false;
  state.SkipWithError("needs a folder with tiktoken.model; set THIMBLE_TOKENIZER");
  return true;
}

std::string Bible() {
  const auto close = [](FILE* pipe) { pclose(pipe); };
  const std::unique_ptr<FILE, decltype(close)> pipe(
      popen("bible -f Gen1:1-Rev22:21 </dev/null 2>/dev/null", "r"), close);
  std::string text;
  if (!pipe) return text;
  char chunk[4096];
  while (text.size() < kTextBytes) {
    const size_t read = fread(chunk, 1, sizeof(chunk), pipe.get());
    if (read == 0) break;
    text.append(chunk, read);
  }
  return text;
}

std::string GeneratedWords() {
  const std::string_view words[] = {"the",   "river", "Because", "engine's",  "memory,", "of",
                                    "under", "1984",  "expert",  "streaming", "a",       "it.\n"};
  std::mt19937 random(1);
  std::string text;
  while (text.size() < kTextBytes) {
    text += words[random() % std::size(words)];
    text += ' ';
  }
  return text;
}

const std::string& English() {
  static const std::string text = [] {
    std::string bible = Bible();
    return bible.size() > kTextBytes / 8 ? bible : GeneratedWords();
  }();
  return text;
}

/// Random letters: hardly a piece is one token.
const std::string& Noise() {
  static const std::string text = [] {
    std::mt19937 random(1);
    std::string noise;
    while (noise.size() < kTextBytes / 8) {
      const size_t value = random();
      noise += value % 8 == 0 ? ' ' : static_cast<char>('a' + value / 8 % 26);
    }
    return noise;
  }();
  return text;
}

void Encode(benchmark::State& state, const std::string& text) {
  if (Skip(state)) return;
  std::vector<TokenId> ids;
  Kimi()->Encode(text, &ids);
  if (Kimi()->Decode(ids) != text) return state.SkipWithError("decodes to another text");
  for (auto _ : state) {
    ids.clear();
    Kimi()->Encode(text, &ids);
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  state.counters["bytes/token"] =
      static_cast<double>(text.size()) / static_cast<double>(ids.size());
}

void BM_EncodeEnglish(benchmark::State& state) { Encode(state, English()); }
BENCHMARK(BM_EncodeEnglish)->Unit(benchmark::kMillisecond);

void BM_EncodeNoise(benchmark::State& state) { Encode(state, Noise()); }
BENCHMARK(BM_EncodeNoise)->Unit(benchmark::kMillisecond);

/// The longest pieces there are: 25,000 characters without white space.
void BM_EncodeRun(benchmark::State& state, const char* unit) {
  std::string text;
  while (text.size() < 25'000) text += unit;
  Encode(state, text);
}
BENCHMARK_CAPTURE(BM_EncodeRun, x, "x")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_EncodeRun, ab, "ab")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_EncodeRun, qjxz, "qjxz")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_EncodeRun, spaces, " ")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_EncodeRun, equals, "=")->Unit(benchmark::kMillisecond);

void BM_DecodeEnglish(benchmark::State& state) {
  if (Skip(state)) return;
  std::vector<TokenId> ids;
  Kimi()->Encode(English(), &ids);
  for (auto _ : state) benchmark::DoNotOptimize(Kimi()->Decode(ids));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * English().size()));
}
BENCHMARK(BM_DecodeEnglish)->Unit(benchmark::kMillisecond);

void BM_Load(benchmark::State& state) {
  if (Skip(state)) return;
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::Load(TokenizerFolder()));
}
BENCHMARK(BM_Load)->Unit(benchmark::kMillisecond);

/// Where the scan stops being the faster one: the origin of PieceMerger's limit.
TokenTable KimiRanks() {
  TokenTable ranks;
  for (TokenId id = 0; id < Kimi()->num_ranks(); ++id) ranks.Add(Kimi()->TokenBytes(id));
  return ranks;
}

using MergeFunction = void (PieceMerger::*)(std::string_view, std::vector<TokenId>*);

void BM_Merge(benchmark::State& state, MergeFunction merge) {
  if (Skip(state)) return;
  static const TokenTable ranks = KimiRanks();
  std::string piece;
  for (const char c : Noise()) {
    if (c != ' ' && piece.size() < static_cast<size_t>(state.range(0))) piece += c;
  }
  PieceMerger merger(ranks);
  std::vector<TokenId> ids;
  for (auto _ : state) {
    ids.clear();
    (merger.*merge)(piece, &ids);
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * piece.size()));
}
BENCHMARK_CAPTURE(BM_Merge, scan, &PieceMerger::MergeByScan)->RangeMultiplier(2)->Range(8, 512);
BENCHMARK_CAPTURE(BM_Merge, heap, &PieceMerger::MergeByHeap)->RangeMultiplier(2)->Range(8, 512);

}  // namespace

/// Time for each token of a bound answer: the set of allowed tokens by the tree of the vocabulary,
/// and how long the tree and a grammar take to make.
///
/// Needs a folder with Kimi's tiktoken.model and tokenizer_config.json: $THIMBLE_TOKENIZER, else
/// $THIMBLE_SHARED/data/tokenizer, else ../shared/data/tokenizer beside the source tree.

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/answer_grammar.h"
#include "grammar/token_filter.h"

namespace {

using namespace thimble;
namespace fs = std::filesystem;

const Tokenizer* Kimi() {
  static const std::optional<Tokenizer> tokenizer = []() -> std::optional<Tokenizer> {
    const char* folder = std::getenv("THIMBLE_TOKENIZER");
    const char* shared = std::getenv("THIMBLE_SHARED");
    const fs::path place =
        folder ? fs::path(folder)
               : (shared ? fs::path(shared) : fs::path(THIMBLE_SOURCE_DIR) / ".." / "shared") /
                     "data" / "tokenizer";
    if (!fs::exists(place / "tiktoken.model")) return std::nullopt;
    return Tokenizer::Load(place);
  }();
  return tokenizer ? &*tokenizer : nullptr;
}

bool Skip(benchmark::State& state) {
  if (Kimi()) return false;
  state.SkipWithError("needs a folder with tiktoken.model; set THIMBLE_TOKENIZER");
  return true;
}

constexpr const char* kFree = R"({"type":"object"})";
constexpr const char* kPerson = R"({"type":"object","properties":{"name":{"type":"string",
    "minLength":1,"maxLength":200},"email":{"type":"string","format":"email"},"age":{"type":
    "integer","minimum":0,"maximum":150},"tags":{"type":"array","items":{"type":"string","pattern":
    "^[a-z-]{1,20}$"},"maxItems":500}},"required":["name","email","age","tags"],
    "additionalProperties":false})";
constexpr const char* kAnswer =
    R"({"name":"Ada King, Countess of Lovelace","email":"ada@example.com",)"
    R"("age":36,"tags":["mathematics","poetry","first-program"]})";

ChatRequest RequestFor(const char* schema) {
  ChatRequest request;
  request.thinking = false;
  request.response_format = ResponseFormat::kJsonSchema;
  request.schema = ParseJson(schema);
  return request;
}
AnswerGrammar Bind(const char* schema) {
  const ChatRequest request = RequestFor(schema);
  return *BindAnswer(request, FormOf(request), ChatMarkup::kKimiK3, *Kimi());
}

/// The masks of a whole answer, token after token, nothing kept from an answer before.
void BM_Masks(benchmark::State& state, const char* schema) {
  if (Skip(state)) return;
  const auto trie = std::make_shared<LazyTokenTrie>(*Kimi());
  trie->Get();
  std::vector<TokenId> ids;
  Kimi()->Encode(kAnswer, &ids);
  size_t allowed = 0;
  for (auto _ : state) {
    state.PauseTiming();
    TokenFilter filter(trie, Bind(schema).grammar);
    state.ResumeTiming();
    for (const TokenId id : ids) {
      const TokenMask& mask = filter.Allowed();
      if (!mask.Has(id)) return state.SkipWithError("a token of the answer is not allowed");
      allowed += mask.Count();
      filter.Accept(id);
    }
  }
  const auto tokens = static_cast<double>(state.iterations() * ids.size());
  state.counters["tokens"] = static_cast<double>(ids.size());
  state.counters["s/token"] =
      benchmark::Counter(tokens, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["allowed"] = static_cast<double>(allowed) / tokens;
}
BENCHMARK_CAPTURE(BM_Masks, any_object, kFree)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Masks, person, kPerson)->Unit(benchmark::kMillisecond);

void BM_Bind(benchmark::State& state, const char* schema) {
  if (Skip(state)) return;
  for (auto _ : state) benchmark::DoNotOptimize(Bind(schema));
}
BENCHMARK_CAPTURE(BM_Bind, any_object, kFree)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(BM_Bind, person, kPerson)->Unit(benchmark::kMicrosecond);

void BM_Trie(benchmark::State& state) {
  if (Skip(state)) return;
  size_t bytes = 0;
  for (auto _ : state) bytes = TokenTrie(*Kimi()).memory_bytes();
  state.counters["MiB"] = static_cast<double>(bytes) / (1 << 20);
  state.counters["estimate_MiB"] =
      static_cast<double>(TokenTrie::EstimateBytes(*Kimi())) / (1 << 20);
}
BENCHMARK(BM_Trie)->Unit(benchmark::kMillisecond);

}  // namespace

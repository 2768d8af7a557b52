/// Any bytes as a JSON schema: refused with an Error in bounded time, or a grammar in which every
/// text that goes on by what is allowed can go on until it is whole, and is then JSON.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "grammar/grammar_states.h"
#include "grammar/schema_compiler.h"

namespace {

using namespace thimble;

constexpr size_t kMaxSteps = 400;

// Walks through the grammar by pseudorandom choices.
void Walk(const Grammar& grammar, uint64_t seed) {
  GrammarStates states(grammar);
  GrammarStates::Id state = states.start();
  THIMBLE_CHECK(state != GrammarStates::kDead);
  std::string text;
  for (size_t i = 0; i < kMaxSteps; ++i) {
    if (states.complete(state)) THIMBLE_CHECK(IsJson(text));
    if (states.ended(state)) {
      THIMBLE_CHECK(states.complete(state));
      return;
    }
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto first = static_cast<uint32_t>(seed >> 56);
    GrammarStates::Id next = GrammarStates::kDead;
    for (uint32_t k = 0; k < 256 && next == GrammarStates::kDead; ++k) {
      const uint32_t byte = (first + k) % 256;
      next = states.Step(state, byte);
      if (next != GrammarStates::kDead) text += static_cast<char>(byte);
    }
    // A whole text need not go on; any other must.
    if (next == GrammarStates::kDead) {
      THIMBLE_CHECK(states.complete(state));
      return;
    }
    state = next;
    if (states.full()) states.Compact({&state, 1});
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const JsonValue schema = ParseJson({reinterpret_cast<const char*>(data), size});
    Grammar grammar;
    SchemaCompiler compiler(schema, "schema", JsonSpacing::kOptional, &grammar);
    const uint32_t root = compiler.Json();
    if (!grammar.Finish(root)) return 0;
    for (uint64_t seed = 0; seed < 3; ++seed) Walk(grammar, seed + size);
  } catch (const Grammar::TooLarge&) {
  } catch (const Error& error) {
    THIMBLE_CHECK(error.code() == ErrorCode::kUsage);
  }
  return 0;
}

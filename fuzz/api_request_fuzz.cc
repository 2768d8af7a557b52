/// A byte that chooses the API, then any bytes as the body of a request: refused with an ApiError
/// of a client's fault, which can be written in the API's shape, or understood. What a schema in it
/// allows is then tried on a text, which never ends the program or takes long.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "chat_tokenizers.h"
#include "server/api.h"

namespace {

using namespace thimble;
using namespace thimble::server;

ServedModel Model(ChatMarkup markup) {
  ServedModel model;
  model.tokenizer = &fuzz::ChatTokenizer(markup);
  model.markup = markup;
  model.name = "fuzz";
  model.context = 20'000;
  return model;
}

void TryText(TokenFilter& filter, const Tokenizer& tokenizer) {
  for (const char c : std::string_view("{\"name\":\"x\",\"a\":[1,{\"b\":null}]}")) {
    const TokenId id = static_cast<unsigned char>(c);
    if (filter.Allows(id)) filter.Accept(id);
  }
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) filter.Allows(id);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const Api api = static_cast<Api>(data[0] % 4);
  const std::string body(reinterpret_cast<const char*>(data) + 1, size - 1);
  for (const ChatMarkup markup : {ChatMarkup::kKimiK3, ChatMarkup::kKimiLinear}) {
    const ServedModel model = Model(markup);
    try {
      const ApiRequest request = ReadApiRequest(api, body, model);
      THIMBLE_CHECK(!request.job.prompt.empty());
      THIMBLE_CHECK(request.job.prompt.size() + request.job.max_tokens <= model.context);
      if (request.job.filter != nullptr) TryText(*request.job.filter, *model.tokenizer);
      THIMBLE_CHECK(!NewApiAnswer(api, model, request)->Fail("x").empty());
    } catch (const ApiError& error) {
      THIMBLE_CHECK(error.status() >= 400 && error.status() < 500);
      THIMBLE_CHECK(!WriteApiError(api, error).empty());
    }
  }
  return 0;
}

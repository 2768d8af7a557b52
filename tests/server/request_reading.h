#pragma once

#include <gtest/gtest.h>

#include <string>

#include "server/api.h"

namespace thimble::server {

inline const Tokenizer& RequestTokenizer() {
  static const Tokenizer tokenizer = Tokenizer::Load(THIMBLE_SOURCE_DIR "/models/mini");
  return tokenizer;
}

/// A model as a server has it, for tests that read requests without one.
inline ServedModel RequestModel() {
  ServedModel model;
  model.tokenizer = &RequestTokenizer();
  model.markup = ChatMarkup::kKimiK3;
  model.name = "mini";
  model.context = 20'000;
  model.stop_ids = {7};
  return model;
}

inline ApiRequest ReadRequest(Api api, const std::string& body) {
  try {
    return ReadApiRequest(api, body, RequestModel());
  } catch (const ApiError& error) {
    ADD_FAILURE() << "refused: " << error.what() << "\n" << body;
    return {};
  }
}

/// What the model is to read for a request.
inline std::string PromptOf(Api api, const std::string& body) {
  return RequestTokenizer().Decode(ReadRequest(api, body).job.prompt);
}

/// The message with which a request is refused; empty where it is not.
inline std::string RefusalOf(Api api, const std::string& body) {
  try {
    ReadApiRequest(api, body, RequestModel());
    return {};
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.what();
  }
}

}  // namespace thimble::server

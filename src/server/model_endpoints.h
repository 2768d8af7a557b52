#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api.h"

namespace thimble::server {

// The endpoints that tell of the model and use its tokenizer: each gives the body of a response.
// ApiError where a request is refused.

/// Of /models.
std::string ListModels(const ServedModel& model);
/// Of /models/NAME.
std::string DescribeModel(const ServedModel& model, std::string_view name);
/// Of /tokenize and /detokenize.
std::string Tokenize(const ServedModel& model, const std::string& text);
std::string Detokenize(const ServedModel& model, const std::string& text);
/// Of /metrics: figures by their names, as Prometheus reads them.
std::string WriteMetrics(const std::vector<std::pair<std::string, double>>& metrics);

}  // namespace thimble::server

#include "cli/lossy_report.h"

#include <fmt/format.h>

namespace thimble::cli {

std::string LossyText(const std::vector<LossyPart>& parts) {
  std::string text;
  for (const LossyPart& part : parts) {
    text += fmt::format(
        "lossy: {} quantised to {} when it was packed (relative error {:.3g} %): its logits are "
        "not those of its source\n",
        part.part, part.format, 100 * part.relative_error);
  }
  return text;
}

nlohmann::ordered_json LossyJson(const std::vector<LossyPart>& parts) {
  auto list = nlohmann::ordered_json::array();
  for (const LossyPart& part : parts) {
    list.push_back(
        {{"part", part.part}, {"format", part.format}, {"relative_error", part.relative_error}});
  }
  return list;
}

}  // namespace thimble::cli

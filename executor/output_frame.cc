#include "executor/output_frame.h"

#include "executor/frame_fields.h"

namespace kcoral::executor {

const char* name_of(OutputStream stream) { return stream == OutputStream::kStdout ? "stdout" : "stderr"; }

nlohmann::json output_frame(const RunId& run, OutputStream stream) {
  nlohmann::json body = frame_about(run, "output");
  body["stream"] = name_of(stream);
  return body;
}

Result<OutputStream> output_stream_from(const nlohmann::json& body) {
  auto name = string_field(body, "stream");
  if (!name) return fail(name.error());
  for (const OutputStream stream : {OutputStream::kStdout, OutputStream::kStderr}) {
    if (*name == name_of(stream)) return stream;
  }
  return fail(ErrorKind::kEngine, "field \"stream\" must be \"stdout\" or \"stderr\"");
}

}  // namespace kcoral::executor

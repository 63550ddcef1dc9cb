// Parses instructions one by one: contract section 3. Private to schema/; `parse_program` is the interface.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "schema/fields.h"
#include "schema/json_reader.h"
#include "schema/program.h"

namespace kcoral::schema {

/// One parser for one program. Not thread-safe.
class InstructionParser {
 public:
  /// What it parses is appended to `program`, which must outlive it.
  explicit InstructionParser(Program& program) : program_(program) {}

  /// Takes the next element of `instructions`. The message of an error begins with the instruction's index, operation
  /// and name as far as they were read.
  Status parse_next(JsonReader& reader);

  /// Checks what can only be seen of all instructions together.
  Status finish() const;

 private:
  /// The members of the instruction at hand.
  using Fields = std::vector<Field>;
  struct Form;

  Status collect(JsonReader& reader, Fields& fields) const;
  Result<Field> take_arguments(JsonReader& reader, const std::string& name) const;
  Result<Instruction> interpret(const Fields& fields);
  Result<Instruction> interpret_upload(const Fields& fields);
  Result<Instruction> interpret_return(const Fields& fields);

  Result<Instruction::Operation> module_upload(const Fields& fields) const;
  Result<Instruction::Operation> tensor_upload(const Fields& fields);
  Result<Instruction::Operation> file_upload(const Fields& fields);
  Result<Instruction::Operation> get_function(const Fields& fields) const;
  Result<Instruction::Operation> run(const Fields& fields) const;
  Result<Instruction::Operation> return_value(const Fields& fields) const;
  Result<Instruction::Operation> return_path(const Fields& fields) const;

  Result<Digest> take_blob(const Fields& fields);
  Status demand_length(const Field& shape, const Digest& blob, uint64_t bytes);
  Result<InstructionIndex> resolve(const Field& field) const;
  Result<Instruction> with_id(const Fields& fields, Result<Instruction::Operation> operation) const;
  const Instruction& handle(InstructionIndex index) const { return program_.instructions[index]; }

  Program& program_;
  // Ordered containers: clients choose what goes in, and nobody can choose it so that these become slow.
  std::map<std::string, InstructionIndex, std::less<>> handles_;
  std::set<std::string> return_keys_;
  std::set<Digest> blobs_;
  std::map<Digest, size_t> lengths_;  // index into program_.tensor_lengths
};

}  // namespace kcoral::schema

// The parts of an engine with a demo model's tokenizer, template and generation defaults, and a script in place of its
// weights.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/scripted_model.h"

namespace tandem::testing {

using engine::Script;
using engine::ScriptedForward;
using engine::ScriptedModel;
using engine::ScriptedOptions;

// The tokenizer of models/demo-flash.
text::Tokenizer demo_tokenizer();

// Answers with these texts in turn, from the first again after the last. What the model writes stands in them as it
// is: "<think>", "</think>" and tool calls; the end token follows by itself.
Script answer_in_turn(const text::Tokenizer& tokenizer, const std::vector<std::string>& texts);
// Answers with what `reply` makes of the prompt's text (with its control tokens).
Script answer_by(std::function<std::string(const std::string& prompt)> reply);

// Options without a vocabulary or end token get the demo's. The context is 4,096 tokens unless limits say otherwise.
engine::EngineParts scripted_parts(ScriptedOptions options);
engine::EngineOptions scripted_limits();
std::unique_ptr<engine::Engine> scripted_engine(ScriptedOptions options,
                                                const engine::EngineOptions& limits = scripted_limits());
// The usual case: an engine that gives these answers in turn.
std::unique_ptr<engine::Engine> scripted_engine(const std::vector<std::string>& texts);

}  // namespace tandem::testing

// Package models is a server of language models for tests. It speaks Anthropic's Messages API and OpenAI's Responses and
// Chat Completions, and Anthropic's models at Amazon Bedrock (InvokeModel), streamed and whole, as the vendors document them: text, thinking, calls of tools and their results,
// cached tokens, refusals with Retry-After, overload, and streams that break. A key that is not the server's is refused
// with 401.
//
// The model follows the prompt. A line "model: VERB WORDS" of the latest prompt is an instruction:
//
//	model: think WORDS     thinks
//	model: say WORDS       answers with the words
//	model: run COMMAND     calls the client's tool for shell commands, and continues with the next line after its result
//	model: loop COMMAND    calls that tool again and again, whatever its result
//	model: spend N         counts N more tokens of output in each answer
//	model: repeat          answers with the output of the last command
//	model: note WORDS      has no effect now
//	model: recall          repeats the first note of the conversation
//	model: answer JSON     answers with JSON, by the client's tool for answers if it offers one
//	model: fail N STATUS   refuses the first N requests with the status; the next one is answered
//	model: break           ends the stream with an error after the first words
//	model: stall           is silent until the client leaves
//
// A prompt without instructions is answered with "ok".
package models

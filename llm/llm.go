// Package llm has the words that the interceptor and the accounts of model APIs share: who is asked before a request leaves, and what
// its vendor reports of its tokens. A [Meter] reserves the most that a request may cost, and settles when its response has ended.
package llm

import (
	"fmt"
	"time"
)

// Vendor is the shape of a model API.
type Vendor string

// The vendors.
const (
	Anthropic Vendor = "anthropic" // Messages
	OpenAI    Vendor = "openai"    // Chat Completions, Responses, Embeddings, and the many servers that speak them
	Google    Vendor = "google"    // generateContent and streamGenerateContent of Gemini
	Bedrock   Vendor = "bedrock"   // Converse of Amazon Bedrock, and Anthropic's Messages by its InvokeModel
)

// Vendors returns all vendors, in the order of documentation.
func Vendors() []Vendor { return []Vendor{Anthropic, OpenAI, Google, Bedrock} }

// Usage counts the tokens of one request, as its vendor reports them.
type Usage struct {
	Input      uint64 // tokens of the request, without those of CacheRead and CacheWrite
	Output     uint64 // tokens of the response, with those of Reasoning
	CacheRead  uint64 // tokens of the request that were read from a cache
	CacheWrite uint64 // tokens of the request that were written to a cache
	Reasoning  uint64 // tokens of Output that were spent on thinking
	Requests   uint64 // 1, or 0 for a request that no server received or that was answered with a status of 300 or above
}

// Call describes a request to a model before it is sent.
type Call struct {
	Vendor Vendor
	Model  string // as the request names it; text of the box
	Others string // models that the server may use instead, separated by spaces; likewise
	Max    uint64 // most output tokens that the request asks for, of all its answers together; 0: not stated
	Input  uint64 // upper bound of its input tokens: bytes of its body
	Adds   bool   // the vendor adds input to that of the body: stored conversations, files, URLs, results of its own tools
}

// Meter is asked by the interceptor for each metered request. Safe for concurrent use.
type Meter interface {
	// Reserve holds the most that a call may cost until Settle. An error refuses the request; it is a *[Refusal].
	Reserve(box string, rule string, c Call) (Reservation, error)
}

// Reservation is the cost that is held for one request.
type Reservation interface {
	// Settle replaces the reserved cost by the actual one. It is called exactly once. model is the model that the vendor reports, or else
	// that of the call; both are printable ASCII. If complete is false, the response ended early or did not contain its usage, and u has the
	// usage reported until then with estimates of the rest, which may be too low. A request that no server received, or whose response is an
	// error, is settled as complete with the zero Usage.
	Settle(u Usage, model string, complete bool)
}

// Refusal refuses a request before it is sent.
type Refusal struct {
	Reason     string        // of the closed set in boxgate/policy/name, such as model_budget
	RetryAfter time.Duration // until a request may be allowed; 0: unknown
	Message    string        // for the box; without secrets
}

// Error returns the message.
func (r *Refusal) Error() string { return fmt.Sprintf("%s: %s", r.Reason, r.Message) }

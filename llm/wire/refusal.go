package wire

import (
	"encoding/json"
	"net/http"
	"strings"

	"boxgate/llm"
)

// errorKind are the words of the vendors for a status: their clients tell errors apart by them.
type errorKind struct{ anthropic, openAI, openAICode, google, bedrock string }

// kindOf returns the words for a status.
func kindOf(status int, reason string) errorKind {
	switch status {
	case http.StatusTooManyRequests:
		return errorKind{"rate_limit_error", "insufficient_quota", "insufficient_quota", "RESOURCE_EXHAUSTED", "ThrottlingException"}
	case http.StatusForbidden:
		return errorKind{"permission_error", "invalid_request_error", reason, "PERMISSION_DENIED", "AccessDeniedException"}
	case http.StatusRequestEntityTooLarge:
		return errorKind{"request_too_large", "invalid_request_error", reason, "INVALID_ARGUMENT", "ValidationException"}
	}
	return errorKind{"invalid_request_error", "invalid_request_error", reason, "INVALID_ARGUMENT", "ValidationException"}
}

// RefusalFields returns the header fields that the errors of a vendor have, for a status.
func RefusalFields(v llm.Vendor, status int) [][2]string {
	if v != llm.Bedrock {
		return nil
	}
	return [][2]string{{"X-Amzn-Errortype", kindOf(status, "").bedrock}}
}

// Refusal returns the body of an error in the shape of a vendor, whose media type is application/json. reason is of boxgate's closed set, and
// message a sentence for the client.
func Refusal(v llm.Vendor, status int, reason, message string) []byte {
	kind := kindOf(status, reason)
	var body any
	switch v {
	case llm.Anthropic:
		body = map[string]any{"type": "error", "error": map[string]any{"type": kind.anthropic, "message": message}}
	case llm.Google:
		body = map[string]any{"error": map[string]any{
			"code": status, "message": message, "status": kind.google,
			"details": []any{map[string]any{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": strings.ToUpper(reason), "domain": "boxgate"}},
		}}
	case llm.Bedrock:
		body = map[string]any{"message": message}
	default:
		body = map[string]any{"error": map[string]any{"message": message, "type": kind.openAI, "param": nil, "code": kind.openAICode}}
	}
	out, err := json.Marshal(body)
	if err != nil { // no value can fail to encode; an empty object still refuses
		return []byte("{}\n")
	}
	return append(out, '\n')
}

package remote

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"boxgate/audit"
)

// maxServerText is the maximum number of bytes of server text in the log.
const maxServerText = 256

// failureBody has the error fields of the known servers.
type failureBody struct {
	Error       json.RawMessage `json:"error"`             // OAuth: the code; Google: an object
	Description string          `json:"error_description"` // OAuth
	Message     string          `json:"message"`           // GitHub, 1Password, AWS
	Type        string          `json:"__type"`            // AWS: the code, possibly behind a namespace
	Errors      []string        `json:"errors"`            // Vault
}

// newRefusal returns the error of a response without success.
func newRefusal(res *http.Response, body []byte, r Request) *Error {
	e := &Error{Status: res.StatusCode, RetryAfter: retryAfter(res.Header, time.Now())}
	code, message := parseFailure(body)
	if codes[code] {
		e.Code = code
	}
	e.ServerText = audit.Escape(maskTexts(message, r.secretTexts()), maxServerText)
	e.Gone = isGone(e)
	return e
}

// parseFailure returns the code and the text of a failure.
func parseFailure(body []byte) (code, message string) {
	var x struct { // AWS STS
		Code    string `xml:"Error>Code"`
		Message string `xml:"Error>Message"`
	}
	if bytes.HasPrefix(bytes.TrimSpace(body), []byte("<")) && xml.Unmarshal(body, &x) == nil {
		return x.Code, x.Message
	}
	var f failureBody
	if json.Unmarshal(body, &f) != nil {
		return "", ""
	}
	message = strings.Join(append([]string{f.Description, f.Message}, f.Errors...), " ")
	if json.Unmarshal(f.Error, &code) == nil && code != "" {
		return code, message
	}
	var google struct {
		Status  string `json:"status"`
		Message string `json:"message"`
	}
	if json.Unmarshal(f.Error, &google) == nil && google.Status != "" {
		return google.Status, message + google.Message
	}
	return f.Type[strings.LastIndexByte(f.Type, '#')+1:], message
}

// isGone reports whether a refusal means that the secret or grant in the request was revoked or deleted, as opposed to
// a server that is broken, busy or unsure.
func isGone(e *Error) bool {
	switch e.Code {
	case "invalid_grant", "ResourceNotFoundException", "NOT_FOUND":
		return true
	}
	return e.Status == http.StatusNotFound || e.Status == http.StatusGone
}

// secretTexts returns the texts to mask in a server's text about the request, longest first.
func (r *Request) secretTexts() (texts []string) {
	add := func(text string) {
		if len(text) > 3 {
			texts = append(texts, text, url.QueryEscape(text), url.PathEscape(text))
			texts = append(texts, base64.StdEncoding.EncodeToString([]byte(text)), base64.RawURLEncoding.EncodeToString([]byte(text)))
		}
	}
	for _, s := range r.Hide {
		add(s.Reveal())
	}
	for _, key := range []string{"Authorization", "X-Vault-Token"} {
		_, credential, _ := strings.Cut(" "+r.Header.Get(key), " ")
		for part := range strings.FieldsSeq(credential) {
			add(part)
		}
	}
	for _, key := range []string{"client_secret", "client_assertion", "assertion", "refresh_token", "secret_id", "jwt"} {
		add(r.Form.Get(key))
	}
	slices.SortFunc(texts, func(a, b string) int { return len(b) - len(a) })
	return texts
}

// maskTexts replaces every occurrence of the texts, which are sorted from long to short.
func maskTexts(message string, texts []string) string {
	for _, text := range texts {
		message = strings.ReplaceAll(message, text, "[redacted]")
	}
	return strings.TrimSpace(message)
}

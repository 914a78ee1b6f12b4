package remote

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Error is a refusal by a server. Its text contains the status and a code from a closed set, and no other text from the
// server.
type Error struct {
	Status     int
	Code       string        // such as "invalid_grant"; "" if missing or unknown
	RetryAfter time.Duration // minimum delay requested by the server; 0: no request
	ServerText string        // text from the server, masked; only for the log
	Gone       bool          // the secret was revoked or deleted, as opposed to unavailable
	// Skew is how far the server's clock is ahead of the gateway's, if that may be the reason.
	Skew time.Duration
}

// Error implements error.
func (e *Error) Error() string {
	text := "it answered with status " + strconv.Itoa(e.Status)
	switch {
	case e.Status >= 300 && e.Status < 400:
		text += ", a redirect, which is not followed"
	case e.Status == http.StatusTooManyRequests && e.RetryAfter > 0:
		text += ", to ask again in " + e.RetryAfter.String()
	}
	if e.Code != "" {
		text += " (" + e.Code + ")"
	}
	switch {
	case e.Skew > 0:
		text += "; the gateway's clock is " + e.Skew.String() + " behind the server's"
	case e.Skew < 0:
		text += "; the gateway's clock is " + (-e.Skew).String() + " ahead of the server's"
	}
	return text
}

// IsGone reports whether the error means that the secret was revoked or deleted.
func IsGone(err error) bool {
	refused, ok := errors.AsType[*Error](err)
	return ok && refused.Gone || errors.Is(err, ErrGone)
}

// ErrGone is returned when an answer means that the secret no longer exists.
var ErrGone = errors.New("it reports that the secret is deleted")

// ErrExpired is returned when a server issued a token that has already expired.
var ErrExpired = errors.New("it answered with a token that has already expired")

// ErrAnswer returns the error for an answer that lacks something.
func ErrAnswer(lacks string) error { return fmt.Errorf("its answer has no %s", lacks) }

// maxRetryAfter bounds the delay that a server can request.
const maxRetryAfter = 15 * time.Minute

// retryAfter parses the header Retry-After, in seconds or as a date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := strings.TrimSpace(h.Get("Retry-After"))
	if text == "" {
		return 0
	}
	d := time.Duration(0)
	if n, err := strconv.Atoi(text); err == nil {
		d = time.Duration(min(max(n, 0), int(maxRetryAfter/time.Second))) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		d = at.Sub(now).Round(time.Second)
	}
	return min(max(d, 0), maxRetryAfter)
}

// codes are the error codes that are shown: the codes of OAuth 2.0 (RFC 6749, section 5.2), AWS, Google and GitHub that
// help an operator. Other codes are not shown, because a server might put a secret there.
var codes = func() map[string]bool {
	set := map[string]bool{}
	for _, c := range strings.Fields(`
		invalid_request invalid_client invalid_grant unauthorized_client unsupported_grant_type invalid_scope invalid_target
		access_denied server_error temporarily_unavailable slow_down interaction_required invalid_resource
		AccessDenied AccessDeniedException ExpiredToken ExpiredTokenException InvalidClientTokenId SignatureDoesNotMatch
		UnrecognizedClientException IncompleteSignature MissingAuthenticationToken InvalidIdentityToken RegionDisabledException
		PackedPolicyTooLarge MalformedPolicyDocument ValidationError ValidationException Throttling ThrottlingException
		ResourceNotFoundException InvalidRequestException InvalidParameterException DecryptionFailure InternalServiceError
		NOT_FOUND PERMISSION_DENIED UNAUTHENTICATED FAILED_PRECONDITION RESOURCE_EXHAUSTED INVALID_ARGUMENT UNAVAILABLE INTERNAL`) {
		set[c] = true
	}
	return set
}()

package strict

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"time"

	"boxgate/api/problem"
)

// bodyTimeout is how long a client may take to send a body.
const bodyTimeout = 30 * time.Second

// Bodies reads the bodies of requests.
type Bodies struct {
	Most int64 // the largest body, in bytes
}

// Read reads the JSON body of a request, within the size limit and a deadline.
func (b Bodies) Read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if r.Header.Get("Content-Type") != "" && (err != nil || media != "application/json") {
		return nil, problem.Refuse(http.StatusUnsupportedMediaType, "the body must be JSON; send Content-Type: application/json")
	}
	rc := http.NewResponseController(w)
	// Where deadlines are not supported (a test recorder), only the size limit applies.
	_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout))
	defer func() { _ = rc.SetReadDeadline(time.Time{}) }()
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, b.Most))
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, problem.Refuse(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", tooLarge.Limit)
	}
	if err != nil {
		return nil, problem.Refuse(http.StatusBadRequest, "the body is incomplete")
	}
	return data, nil
}

// Decode reads the body of a request into v, which points to a struct or map. Everything that is not exactly as
// declared is refused, and the error lists all problems.
func (b Bodies) Decode(w http.ResponseWriter, r *http.Request, v any) error {
	data, err := b.Read(w, r)
	if err != nil {
		return err
	}
	return Unmarshal(data, v)
}

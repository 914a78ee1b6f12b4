package rest

import "net/http"

// Writer knows whether the answer has begun: after that, the only way to report a failure is to close the connection.
type Writer struct {
	http.ResponseWriter
	started bool
}

// WriteHeader begins the answer.
func (w *Writer) WriteHeader(status int) {
	w.started = true
	w.ResponseWriter.WriteHeader(status)
}

// Write begins the answer if it has not begun.
func (w *Writer) Write(b []byte) (int, error) {
	w.started = true
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

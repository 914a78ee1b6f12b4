package egress

import (
	"encoding/json"
	"net/http"

	"boxgate/api/stream"
	"boxgate/audit"
)

// eventWriter writes decisions as NDJSON or server-sent events.
type eventWriter struct {
	w   http.ResponseWriter
	rc  *http.ResponseController
	sse bool
}

func (s *eventWriter) begin(run string) {
	s.w.Header().Set(stream.RunHeader, run)
	s.w.Header().Set("Content-Type", stream.NDJSON)
	if s.sse {
		s.w.Header().Set("Content-Type", stream.EventStream)
	}
	s.w.Header().Set("X-Accel-Buffering", "no")
	s.w.WriteHeader(http.StatusOK)
}

func (s *eventWriter) flush() error { return s.rc.Flush() }

// all writes past events. It fails if the client has disconnected.
func (s *eventWriter) all(events []audit.Event) error {
	for _, e := range events {
		if err := s.event(e); err != nil {
			return err
		}
	}
	return s.flush()
}

func (s *eventWriter) event(e audit.Event) error { return s.write("decision", e) }

// lostView reports in the stream that events were lost because the client was too slow.
type lostView struct {
	Lost uint64 `json:"lost"`
}

func (s *eventWriter) lost(n uint64) error { return s.write("lost", lostView{n}) }

// gapView reports in the stream that decisions may be missing.
type gapView struct {
	Gap string `json:"gap"`
}

func (s *eventWriter) gap(why string) error { return s.write("gap", gapView{why}) }

// ping keeps the connection alive and detects a dead client before the next decision.
func (s *eventWriter) ping() error {
	line := "\n" // readers of NDJSON skip empty lines
	if s.sse {
		line = ": ping\n\n"
	}
	_, err := s.w.Write([]byte(line))
	return err
}

func (s *eventWriter) write(name string, v any) error {
	text := stream.Event(name, v)
	if !s.sse {
		line, err := json.Marshal(v)
		if err != nil {
			return err
		}
		text = append(line, '\n')
	}
	_, err := s.w.Write(stream.EscapeControls(text))
	return err
}

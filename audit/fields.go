package audit

import "go.uber.org/zap/zapcore"

// fields writes an event into a log line, with the names of its JSON encoding. Time and level are set on the line
// itself.
type fields struct{ e *Event }

// MarshalLogObject implements [zapcore.ObjectMarshaler].
func (f fields) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	e := f.e
	text := func(name, value string) {
		if value != "" {
			enc.AddString(name, value)
		}
	}
	if e.Seq != 0 {
		enc.AddUint64("seq", e.Seq)
	}
	text("box", string(e.Box))
	enc.AddString("stage", string(e.Stage))
	text("protocol", string(e.Protocol))
	text("name", e.Name)
	if e.Addr.IsValid() {
		enc.AddString("addr", e.Addr.String())
	}
	if e.Claimed.IsValid() {
		enc.AddString("claimed_addr", e.Claimed.String())
	}
	if e.Port != 0 {
		enc.AddUint16("port", e.Port)
	}
	if e.Peer.IsValid() {
		enc.AddString("peer", e.Peer.String())
	}
	text("method", e.Method)
	text("path", e.Path)
	enc.AddString("verdict", e.Verdict.String())
	text("action", string(e.Action))
	enc.AddString("reason", string(e.Reason))
	text("rule", e.Rule)
	f.addNumbers(enc)
	text("phase", string(e.Phase))
	text("conn", e.Conn)
	text("error", e.Error)
	if e.SelfTest {
		enc.AddBool("selftest", true)
	}
	if len(e.Headers) == 0 {
		return nil
	}
	return enc.AddArray("headers", names(e.Headers))
}

func (f fields) addNumbers(enc zapcore.ObjectEncoder) {
	e := f.e
	if e.Version != 0 {
		enc.AddUint64("policy_version", e.Version)
	}
	if e.Count != 0 {
		enc.AddUint64("count", e.Count)
	}
	if e.Destinations != 0 {
		enc.AddUint64("destinations", e.Destinations)
	}
	number := func(name string, n int64) {
		if n != 0 {
			enc.AddInt64(name, n)
		}
	}
	number("bytes_in", e.BytesIn)
	number("bytes_out", e.BytesOut)
	number("duration_ns", int64(e.Duration))
	number("status", int64(e.Status))
}

// names is a list of header names.
type names []string

// MarshalLogArray implements [zapcore.ArrayMarshaler].
func (n names) MarshalLogArray(enc zapcore.ArrayEncoder) error {
	for _, s := range n {
		enc.AppendString(s)
	}
	return nil
}

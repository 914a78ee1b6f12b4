package policy

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// TestSecretIsNeverShown writes a secret in every way that programs write values, alone and inside other values.
func TestSecretIsNeverShown(t *testing.T) {
	t.Parallel()
	const value = "hunter2"
	s := NewSecret(value)
	rule := HeaderRule{Headers: []Header{{Name: "Authorization", Value: s}}}
	hidden := struct{ inner Secret }{s} // fmt does not ask the methods of unexported fields
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%p", "%10v", "% x", "%#q", "%T"} {
		for _, v := range []any{s, &s, rule, &rule, []HeaderRule{rule}, map[string]Secret{"k": s}, hidden, &hidden} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
	}
	fmt.Fprintln(&out, s, rule, hidden, s.GoString(), s.String())
	for _, v := range []any{s, &s, rule, map[string]any{"k": rule}, hidden} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(b)
		_ = gob.NewEncoder(&out).Encode(v)
		_ = xml.NewEncoder(&out).Encode(v)
	}
	text, err := s.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	out.Write(text)
	writeLogs(&out, s, rule)
	for _, shape := range []string{value, fmt.Sprintf("%x", value), fmt.Sprintf("%X", value), "68 75 6e", fmt.Sprintf("%d", []byte(value))} {
		if i := strings.Index(out.String(), shape); i >= 0 {
			t.Errorf("the value is shown as %q", shape)
		}
	}
	if s.Reveal() != value {
		t.Error("Reveal does not return the value")
	}
}

func writeLogs(out *bytes.Buffer, s Secret, rule HeaderRule) {
	for _, enc := range []zapcore.Encoder{
		zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig()),
	} {
		log := zap.New(zapcore.NewCore(enc, zapcore.AddSync(out), zap.DebugLevel))
		log.Info("m", zap.Any("a", s), zap.Any("b", rule), zap.Reflect("c", s), zap.Reflect("d", &rule), zap.Stringer("e", s), zap.Any("f", []Secret{s}))
		log.Sugar().Infow("m", "a", s, "b", rule)
	}
	slog.New(slog.NewTextHandler(out, nil)).Info("m", "a", s, "b", rule)
	slog.New(slog.NewJSONHandler(out, nil)).Info("m", "a", s, "b", rule)
}

func TestSecretEqual(t *testing.T) {
	t.Parallel()
	if !NewSecret("a").Equal(NewSecret("a")) || NewSecret("a").Equal(NewSecret("b")) || !(Secret{}).Equal(NewSecret("")) {
		t.Error("secrets are compared by value")
	}
}

package name

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.yaml.in/yaml/v3"
)

// header and rule hold secrets as header rules do.
type (
	header struct {
		Name  string
		Value Secret
	}
	headerRule struct{ Headers []header }
)

// TestSecretIsNeverShown writes a secret in every way that programs write values, alone and inside other values.
func TestSecretIsNeverShown(t *testing.T) {
	t.Parallel()
	const value = "hunter2"
	s := NewSecret(value)
	rule := headerRule{Headers: []header{{Name: "Authorization", Value: s}}}
	hidden := struct{ inner Secret }{s} // fmt does not ask the methods of unexported fields
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%p", "%10v", "% x", "%#q", "%T"} {
		for _, v := range []any{s, &s, rule, &rule, []headerRule{rule}, map[string]Secret{"k": s}, hidden, &hidden} {
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
		text, err := yaml.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(text)
		_ = gob.NewEncoder(&out).Encode(v)
		_ = xml.NewEncoder(&out).Encode(v)
	}
	text, err := s.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	out.Write(text)
	writeLogs(&out, s, rule)
	fmt.Fprintln(&out, fmt.Errorf("refused: %s %v %w", s, rule, errors.Join(fmt.Errorf("%q", s))))
	deepPrint(&out, reflect.ValueOf(&hidden), 0)
	deepPrint(&out, reflect.ValueOf(map[string]any{"k": []headerRule{rule}, "l": header{Value: s}}), 0)
	for _, shape := range []string{value, fmt.Sprintf("%x", value), fmt.Sprintf("%X", value), "68 75 6e", fmt.Sprintf("%d", []byte(value))} {
		if i := strings.Index(out.String(), shape); i >= 0 {
			t.Errorf("the value is shown as %q", shape)
		}
	}
	if s.Reveal() != value {
		t.Error("Reveal does not return the value")
	}
}

// deepPrint writes all that reflection finds in a value, as debuggers and test libraries do: it calls no methods and
// follows pointers and unexported fields.
func deepPrint(w io.Writer, v reflect.Value, depth int) {
	if depth > 20 {
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		deepPrint(w, v.Elem(), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			deepPrint(w, v.Field(i), depth+1)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			deepPrint(w, v.Index(i), depth+1)
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			deepPrint(w, it.Key(), depth+1)
			deepPrint(w, it.Value(), depth+1)
		}
	case reflect.Invalid:
	default:
		fmt.Fprintln(w, v)
	}
}

// panicWith is the variable that makes a process of this test panic; its value selects the panic.
const panicWith = "POLICY_TEST_PANIC_WITH"

// TestPanicsDoNotShowSecrets ends processes by panics with secrets in all kinds of values and in their arguments.
func TestPanicsDoNotShowSecrets(t *testing.T) {
	const value = "hunter2"
	s := NewSecret(value)
	rule := headerRule{Headers: []header{{Name: "Authorization", Value: s}}}
	values := map[string]any{
		"secret": s, "pointer": &s, "rule": rule, "error": fmt.Errorf("with %v and %+v", s, rule), "struct": struct{ S Secret }{s},
		"unexported": struct{ s Secret }{s}, "map": map[string]Secret{"k": s}, "text": fmt.Sprint(s, rule),
	}
	if which := os.Getenv(panicWith); which != "" {
		panic(values[which])
	}
	for which := range values {
		cmd := exec.Command(os.Args[0], "-test.run=^TestPanicsDoNotShowSecrets$")
		cmd.Env = append(os.Environ(), panicWith+"="+which, "GOTRACEBACK=system")
		out, err := cmd.CombinedOutput()
		if err == nil || !bytes.Contains(out, []byte("panic: ")) {
			t.Errorf("%s: no panic: %v %s", which, err, out)
		}
		if bytes.Contains(out, []byte(value)) {
			t.Errorf("%s: the panic shows the value:\n%s", which, out)
		}
	}
}

func TestSecretsAreNotDecoded(t *testing.T) {
	t.Parallel()
	var s Secret
	//lint:ignore SA9005 that nothing can be decoded into it is what is tested
	if json.Unmarshal([]byte(`"hunter2"`), &s) == nil || yaml.Unmarshal([]byte(`hunter2`), &s) == nil || s.Reveal() != "" {
		t.Errorf("decoded to %q", s.Reveal())
	}
}

func writeLogs(out *bytes.Buffer, s Secret, rule headerRule) {
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

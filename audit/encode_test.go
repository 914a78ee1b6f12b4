package audit

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"boxgate/policy"
	"boxgate/policy/name"
)

func TestNumbersOfEveryLength(t *testing.T) {
	t.Parallel()
	for _, power := range powers {
		for _, n := range []uint64{0, power - 1, power, power + 1, 2*power - 1, -power} {
			if got, want := string(appendDecimal([]byte("n="), n)), "n="+strconv.FormatUint(n, 10); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
	}
	for n := range 256 {
		ip := [4]byte{byte(n), 0, byte(255 - n), byte(n)}
		if got, want := string(appendIPv4(nil, ip)), netip.AddrFrom4(ip).String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// A line of the log: the event, and the fields of every line of the gateway.
type logged struct {
	Level string `json:"level"`
	Msg   string `json:"msg"`
	Event
}

func lineOf(e *Event, console bool) string {
	var c encoder
	return string(c.append(nil, e, e.isVerbatim(), console))
}

func TestLogLineIsAsDocumented(t *testing.T) {
	t.Parallel()
	e := full()
	e.Name, e.Method, e.Path, e.Rule, e.Headers, e.Error, e.Conn = "api.example.com", "GET", `/a"b\c`, "*.example.com", []string{"Authorization", "X-Key"}, "", "c1"
	e.Messages, e.Secrets = "tools/call delete", []string{"openai", `a"b`}
	e.Seq, e.Claimed = 9, netip.MustParseAddr("2001:db8::1")
	fields := `"seq":9,"box":"b1","stage":"http","protocol":"tcp","name":"api.example.com","addr":"198.51.100.7","claimed_addr":"2001:db8::1","port":443,` +
		`"method":"GET","path":"/a\"b\\c","messages":"tools/call delete","verdict":"deny","action":"refuse","reason":"not_allowed","rule":"*.example.com","policy_version":7,"count":4,` +
		`"bytes_in":1,"bytes_out":2,"duration_ns":3000000,"status":403,"phase":"open","conn":"c1","headers":["Authorization","X-Key"],"secrets":["openai","a\"b"]}` + "\n"
	if got, want := lineOf(&e, false), `{"level":"info","time":"2026-03-01T12:00:00Z","msg":"decision",`+fields; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got, want := lineOf(&e, true), Line(e)+"\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got, want := lineOf(&Event{}, false), `{"level":"info","time":"0001-01-01T00:00:00Z","msg":"decision","stage":"","verdict":"deny","reason":""}`+"\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// The times of consecutive events are formatted like by package time.
func FuzzTime(f *testing.F) {
	f.Add(int64(1772366400), int64(0), int64(100), int64(999999999), int64(-1))
	f.Add(int64(0), int64(120000000), int64(1), int64(5), int64(1<<40))
	f.Fuzz(func(t *testing.T, second, n1, n2, n3, further int64) {
		var c encoder
		for _, zone := range []*time.Location{time.UTC, time.Local, time.FixedZone("", 7*3600+1800), time.FixedZone("", -60)} {
			for _, at := range []time.Time{time.Unix(second, n1), time.Unix(second, n2), time.Unix(second, n3), time.Unix(further, 0), {}} {
				at = at.In(zone)
				if got, want := string(c.appendTime(nil, at)), at.Format(time.RFC3339Nano); got != want {
					t.Errorf("%s, want %s", got, want)
				}
			}
		}
	})
}

// FuzzLogLine checks that the line of any event is one line of printable ASCII, that encoding/json decodes the event
// from it, and that zap would have written the same, whether or not the texts were escaped before.
func FuzzLogLine(f *testing.F) {
	f.Add(nasty, "api.example.com", "X-Key", []byte{198, 51, 100, 7}, int64(1), uint64(2), true)
	f.Add("\xed\xa0\x80\U0001F600\uFFFD</script>", "", "", make([]byte, 16), int64(-1), uint64(1)<<63, false)
	f.Fuzz(func(t *testing.T, box, any, header string, ip []byte, signed int64, number uint64, yes bool) {
		e := Event{
			Seq: number, Time: time.Unix(signed>>32, signed&0xfffffff).UTC(), Box: policy.BoxID(box), Stage: policy.Stage(any), Protocol: policy.Protocol(box),
			Name: any, Port: uint16(number), Method: box, Path: any, Messages: any + box, Action: Action(any), Reason: name.Reason(any), Rule: box, Version: number,
			BytesIn: signed, BytesOut: -signed, Duration: time.Duration(signed), Status: int(signed), Count: number, Destinations: number,
			Credential: Credential(box), RCode: box, Phase: Phase(box), Conn: any, Error: any + box, SelfTest: yes,
		}
		if yes {
			e.Verdict, e.Headers = policy.Allow, []string{header, any}
		}
		e.Addr, _ = netip.AddrFromSlice(ip)
		e.Claimed, e.Peer = e.Addr, e.Addr
		if e.Addr.Is6() {
			e.Peer = e.Addr.WithZone(box)
		}
		checkLine(t, e)
		e.escapeTexts()
		checkLine(t, e)
		if got, want := lineOf(&e, false), zapLine(t, &e); got != want {
			t.Errorf("got\n%szap writes\n%s", got, want)
		}
	})
}

func checkLine(t *testing.T, e Event) {
	t.Helper()
	if got, want := string(new(encoder).append(nil, &e, false, false)), lineOf(&e, false); got != want {
		t.Errorf("got\n%sas it stands\n%s", got, want)
	}
	for _, line := range []string{lineOf(&e, false), lineOf(&e, true)} {
		if body, end := strings.CutSuffix(line, "\n"); !end {
			t.Errorf("%q is not a line", line)
		} else {
			assertHarmless(t, "line", strings.ReplaceAll(body, "\t", " "))
		}
	}
	if _, err := json.Marshal(e); err != nil {
		return // encoding/json rejects the year
	}
	var got logged
	if err := json.Unmarshal([]byte(lineOf(&e, false)), &got); err != nil {
		t.Fatalf("%v: %s", err, lineOf(&e, false))
	}
	if want := (logged{"info", "decision", readable(t, e)}); !reflect.DeepEqual(got, want) {
		t.Errorf("read back:\n%+v\nwritten:\n%+v", got, want)
	}
}

// readable returns the event after encoding and decoding by encoding/json.
func readable(t *testing.T, e Event) (out Event) {
	t.Helper()
	data, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &out); err != nil {
		t.Skip(err) // a zone that no address can have
	}
	return out
}

// zapLine returns zap's encoding of an event, with the field names of [Event].
func zapLine(t *testing.T, e *Event) string {
	t.Helper()
	cfg := zap.NewProductionEncoderConfig()
	cfg.TimeKey, cfg.EncodeTime = "time", zapcore.RFC3339NanoTimeEncoder
	line, err := zapcore.NewJSONEncoder(cfg).EncodeEntry(zapcore.Entry{Time: e.Time, Message: "decision"}, zapFields(reflect.ValueOf(*e)))
	if err != nil {
		t.Fatal(err)
	}
	return line.String()
}

func zapFields(v reflect.Value) []zap.Field {
	fields := make([]zap.Field, 0, v.NumField())
	add := func(name string) {
		for i := range v.NumField() {
			tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			always := tag == "stage" || tag == "verdict" || tag == "reason"
			if f := v.Field(i); tag == name && (always || !f.IsZero() && (f.Kind() != reflect.Slice || f.Len() > 0)) {
				fields = append(fields, zapField(name, f))
			}
		}
	}
	for _, name := range strings.Fields("seq box stage protocol name addr claimed_addr port peer method path messages credential verdict action rcode reason rule policy_version " +
		"count destinations bytes_in bytes_out duration_ns status phase conn error selftest headers") {
		add(name)
	}
	return fields
}

func zapField(name string, f reflect.Value) zap.Field {
	switch f.Kind() {
	case reflect.String:
		return zap.String(name, f.String())
	case reflect.Slice:
		return zap.Strings(name, f.Interface().([]string))
	case reflect.Bool:
		return zap.Bool(name, f.Bool())
	case reflect.Int, reflect.Int64:
		return zap.Int64(name, f.Int())
	case reflect.Uint16, reflect.Uint64:
		return zap.Uint64(name, f.Uint())
	default:
		return zap.String(name, fmt.Sprint(f.Interface()))
	}
}

// Each byte counts, at any position and length of a text.
func TestVerbatimIsByteByByte(t *testing.T) {
	t.Parallel()
	for n := range 40 {
		for at := range n {
			for c := range 256 {
				s := strings.Repeat("a", at) + string([]byte{byte(c)}) + strings.Repeat("~", n-at-1)
				for _, lowest := range []byte{' ', '!'} {
					want := c >= int(lowest) && c <= '~' && c != '"' && c != '\\'
					if isVerbatim(s, n, lowest) != want {
						t.Fatalf("%q from %q on: %v", s, lowest, !want)
					}
				}
			}
		}
		if s := strings.Repeat("a", n); !isVerbatim(s, n, '!') || isVerbatim(s, n-1, '!') {
			t.Errorf("the limit does not hold for %d bytes", n)
		}
	}
}

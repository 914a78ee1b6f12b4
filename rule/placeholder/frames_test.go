package placeholder

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"boxgate/policy/name"
)

// room is memory of a limited size.
type room struct{ held, most, limit int }

func (r *room) Grow(n int) bool {
	if r.held+n > r.limit {
		return false
	}
	r.held += n
	r.most = max(r.most, r.held)
	return true
}

func (r *room) Shrink(n int) { r.held -= n }

func token(variable string) string {
	return NewToken(name.NewSecret("key of a box"), variable)
}

// textFrame is a text message of a client.
func textFrame(text string) []byte {
	f := Frames{first: textOpcode}
	return f.send(nil, []byte(text), true)
}

// TestMessagesAreBounded: a message may have so many tokens, however few different ones, and no more.
func TestMessagesAreBounded(t *testing.T) {
	t.Parallel()
	var asked [][]string
	memory := &room{limit: 1 << 30}
	f := &Frames{Memory: memory, Values: func(tokens []string) ([]string, error) {
		asked = append(asked, slices.Clone(tokens))
		return make([]string, len(tokens)), nil
	}}
	if _, err := f.Append(nil, textFrame(strings.Repeat(token("A")+" "+token("B"), MaxTokens/2))); err != nil {
		t.Fatal(err)
	}
	if len(asked) != 1 || !slices.Equal(asked[0], []string{token("A"), token("B")}) {
		t.Errorf("asked for %d values, %v", len(asked), asked)
	}
	if _, err := f.Append(nil, textFrame("hi")); err != nil || len(asked) != 1 {
		t.Errorf("a message without a token: %v", err)
	}
	if out, err := f.Append(nil, textFrame(strings.Repeat(token("A"), MaxTokens+1))); !errors.Is(err, ErrMany) || len(asked) != 1 || len(out) > 0 {
		t.Errorf("too many: %v, asked %d times, %d bytes", err, len(asked), len(out))
	}
}

// TestMessagesAreCharged: the memory of a changed message is charged before the message is built, until the next part arrives.
func TestMessagesAreCharged(t *testing.T) {
	t.Parallel()
	value := strings.Repeat("v", 8<<10)
	message := textFrame(strings.Repeat(token("A"), MaxTokens))
	for _, limit := range []int{1 << 20, 1 << 30} {
		memory := &room{limit: limit}
		f := &Frames{Memory: memory, Values: func(tokens []string) ([]string, error) { return []string{value}, nil }}
		out, err := f.Append(nil, message)
		if limit < 1<<30 {
			if !errors.Is(err, errMemory) || len(out) > 0 {
				t.Errorf("beyond the limit: %v, %d bytes", err, len(out))
			}
			continue
		}
		if want := MaxTokens * len(value); err != nil || len(out) < want || memory.held < 2*want {
			t.Errorf("%v, %d bytes, %d charged", err, len(out), memory.held)
		}
		if _, err := f.Append(nil, textFrame("")); err != nil || memory.held > 1<<10 {
			t.Errorf("%v, %d charged after it was sent", err, memory.held)
		}
		if _, err := f.Append(nil, nil); err != nil || memory.held != 0 {
			t.Errorf("%v, %d charged at the end", err, memory.held)
		}
	}
}

// TestReplaceOnlyValues: what stands behind a semicolon may be a name.
func TestReplaceOnlyValues(t *testing.T) {
	t.Parallel()
	value := func(tokens []string) ([]string, error) { return []string{"a b"}, nil }
	for text, want := range map[string]string{
		"a=" + token("A") + ";b": "a=a%20b;b", "a=1;b=" + token("A"): "a=1;b=a%20b", "a=1;" + token("A"): "", "a=1;" + token("A") + "=2": "",
		"a=%" + token("A"): "", "a=%4" + token("A"): "", "a=%u00" + token("A"): "", "a=%2525" + token("A"): "", "a=%5C" + token("A"): "", "a=%5Cu0" + token("A"): "",
		"a=%20" + token("A"): "a=%20a%20b", "a=%41bc" + token("A"): "a=%41bca%20b", "a=%u0041" + token("A"): "a=%u0041a%20b",
	} {
		r, err := Replace([]byte(text), Form, value)
		if got := string(r.Bytes()); want == "" && !errors.Is(err, ErrLate) || want != "" && (err != nil || got != want || r.Size() != len(want)) {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
}

package trail

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf16"

	"boxgate/policy"
)

// Kind is the kind of an entry.
type Kind string

// The kinds.
const (
	Call    Kind = "call"    // a call that changes state is about to be carried out
	Answer  Kind = "answer"  // the outcome of a call; its Call is the call's Seq
	Refused Kind = "refused" // a call that was not carried out
	Start   Kind = "start"   // the gateway has opened the trail
	Removed Kind = "removed" // entries before First are removed, because the trail has reached its size or age
	Policy  Kind = "policy"  // the policy of a box has changed along with a named policy, by Call, or because temporary entries have ended
	Kept    Kind = "kept"    // Original was in a file that is removed, and its key is within its share of the trail
)

// Change is the change that a call made, as a JSON object.
type Change struct{ json.RawMessage }

// FreeForm marks it as an arbitrary object in the description of the API.
func (Change) FreeForm() {}

// Entry is one entry of the trail. It contains names and IDs, but never a secret value, nor text chosen by a caller
// except accepted names.
type Entry struct {
	Seq    uint64       `json:"seq"`
	Time   time.Time    `json:"time"`
	Kind   Kind         `json:"kind" enum:"call answer policy refused start removed kept"`
	Call   uint64       `json:"call,omitempty" doc:"of an answer or policy entry: seq of the call"`
	KeyID  string       `json:"key_id,omitempty" doc:"ID of the API key, or of the person of an identity provider (sso_…); absent without a valid key. For temporary entries that have ended: the key that made them; kubernetes: a BoxgatePolicy; fleet: a policy of the fleet without a readable author"`
	Key    string       `json:"key,omitempty" doc:"its name, or that of the person"`
	Role   string       `json:"role,omitempty"`
	Remote string       `json:"remote,omitempty" doc:"address of the caller, unix with the ID and name of the user, or dashboard with the address of the browser, or ssh with that of the client"`
	Method string       `json:"method,omitempty"`
	Route  string       `json:"route,omitempty" doc:"the endpoint, as in this description"`
	Box    policy.BoxID `json:"box,omitempty"`
	Status int          `json:"status,omitempty" doc:"of the answer; 499: the caller disconnected first"`

	PolicyVersion uint64 `json:"policy_version,omitempty" doc:"version of the policy of the box after the change, as in decisions"`
	Change        Change `json:"change,omitzero" doc:"the change, without secret values"`
	// Suppressed is the number of refusals of the same key that were not written before this one.
	Suppressed uint64 `json:"suppressed,omitempty" doc:"number of refused calls of the same key omitted before this one"`
	First      uint64 `json:"first,omitempty" doc:"of removed: seq of the first remaining entry"`
	Note       string `json:"note,omitempty"`
	Original   Change `json:"original,omitzero" doc:"of kept: the earlier entry, unchanged"`

	Prev string `json:"prev" doc:"hash of the previous entry"`
}

// Origin returns the entry that e keeps, or e itself if it is not of kind Kept.
func (e Entry) Origin() Entry {
	var o Entry
	if e.Kind != Kept || json.Unmarshal(e.Original.RawMessage, &o) != nil {
		return e
	}
	return o
}

// The end of a line: the hash of all before it, closed by a brace.
const (
	hashHead = `,"hash":"`
	hashTail = `"}`
	hashSize = len(hashHead) + 2*sha256.Size + len(hashTail)
)

// seal encodes an entry with its hash and a line break.
func (e Entry) seal() (line []byte, hash string, err error) {
	body, err := json.Marshal(e)
	if err != nil {
		return nil, "", err
	}
	body = ascii(body)
	sum := sha256.Sum256(body)
	hash = hex.EncodeToString(sum[:])
	line = append(body[:len(body)-1], hashHead+hash+hashTail+"\n"...)
	return line, hash, nil
}

// ascii escapes everything in JSON that is not printable ASCII, so that a line reaches terminals and files exactly as
// it was hashed.
func ascii(body []byte) []byte {
	if !bytes.ContainsFunc(body, func(r rune) bool { return r >= 0x7f }) {
		return body
	}
	var out []byte
	for _, r := range string(body) {
		if r < 0x7f {
			out = append(out, byte(r))
			continue
		}
		for _, half := range utf16.Encode([]rune{r}) {
			out = fmt.Appendf(out, `\u%04x`, half)
		}
	}
	return out
}

var errEdited = errors.New("its hash does not match its text")

// openLine decodes a line and checks its hash.
func openLine(line []byte) (e Entry, hash string, err error) {
	if len(line) < hashSize+2 || !bytes.HasSuffix(line, []byte(hashTail)) || !bytes.HasPrefix(line[len(line)-hashSize:], []byte(hashHead)) {
		return e, "", errEdited
	}
	cut := len(line) - hashSize
	hash = string(line[cut+len(hashHead) : len(line)-len(hashTail)])
	body := append(bytes.Clone(line[:cut]), '}')
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != hash {
		return e, "", errEdited
	}
	return e, hash, json.Unmarshal(body, &e)
}

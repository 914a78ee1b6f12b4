package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/policy"
)

// newAuthority returns the certificate of an authority.
func newAuthority() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	return x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
}

// The names of a resource are Kubernetes' own, and its policy has every known field and no other.
func TestParseResources(t *testing.T) {
	t.Parallel()
	for object, problem := range map[string]string{
		`{"metadata":{"namespace":"a","name":"web"},"spec":{"mode":"deny-all"}}`:                            "",
		`{"metadata":{"namespace":"a","name":"web.v2"},"spec":{"mode":"deny-all"},"status":{"problems":7}}`: "",
		`{"metadata":{"namespace":"a","name":"web"},"spec":{"mode":"deny-all","x":1}}`:                      "/x",
		`{"metadata":{"namespace":"a","name":"web"},"spec":{"allowOut":["example.com"]}}`:                   "/spec/mode is missing",
		`{"metadata":{"namespace":"a","name":"web"},"spec":{"allow":{"example.com":[]}}}`:                   "/spec/mode is missing",
		`{"metadata":{"namespace":"a","name":"web"},"spec":{"named":"other"}}`:                              "/spec/mode is missing",
		`{"metadata":{"namespace":"a","name":"web"},"spec":"deny-all"}`:                                     "/spec/mode is missing",
		`{"metadata":{"namespace":"a","name":"web"}}`:                                                       "/spec/mode is missing",
		`{"metadata":{"namespace":"a.b","name":"web"},"spec":{"mode":"deny-all"}}`:                          "another form",
		`{"metadata":{"namespace":"","name":"web"},"spec":{"mode":"deny-all"}}`:                             "another form",
		`{"metadata":{"namespace":"a","name":"../b/web"},"spec":{"mode":"deny-all"}}`:                       "another form",
		`{"metadata":{"namespace":"a","name":"web\u0000"},"spec":{"mode":"deny-all"}}`:                      "another form",
		`{"metadata":{"namespace":"a","name":"` + strings.Repeat("n", 64) + `"}}`:                           "another form",
		`{"metadata":7}`: "cannot be read",
		`[]`:             "cannot be read",
	} {
		r, err := parseResource([]byte(object))
		if err == nil {
			_, err = r.parseSpec()
			if err != nil && !isInvalid(err) {
				t.Errorf("%s: not a mistake in the policy: %v", object, err)
			}
		}
		if (err == nil) != (problem == "") || err != nil && !strings.Contains(messageOf(err), problem) {
			t.Errorf("%s: %v, want %q", object, err, problem)
		}
	}
}

// One gateway's verdict is not overwritten by another's: acceptance stays, and nodes with a problem are listed beside it.
func TestStatusesOfSeveralNodes(t *testing.T) {
	t.Parallel()
	mistake, full := invalid("/x", "is unknown"), errors.New("full")
	s, changed := status{}.next(1, "a", "t1", nil)
	if !changed || s.Conditions[0].Status != "True" {
		t.Fatalf("%+v", s)
	}
	if again, changed := s.next(1, "b", "t2", nil); changed {
		t.Errorf("a second node writes %+v", again)
	}
	s, changed = s.next(1, "b", "t2", mistake)
	if !changed || s.Conditions[0].Status != "True" || len(s.Problems) != 1 || s.Problems[0].Node != "b" {
		t.Errorf("a node that does not accept it: %+v", s)
	}
	s, _ = s.next(1, "c", "t3", full)
	if len(s.Problems) != 2 {
		t.Errorf("a node without room: %+v", s)
	}
	if again, changed := s.next(1, "c", "t4", full); changed {
		t.Errorf("the same problem again: %+v", again)
	}
	s, changed = s.next(1, "b", "t5", nil)
	if !changed || len(s.Problems) != 1 || s.Problems[0].Node != "c" {
		t.Errorf("a solved problem: %+v", s)
	}
	s, changed = s.next(2, "a", "t6", mistake)
	if !changed || s.Conditions[0].Status != "False" || s.Conditions[0].LastTransitionTime != "t6" || len(s.Problems) != 0 {
		t.Errorf("a later version: %+v", s)
	}
	if again, changed := s.next(2, "b", "t7", mistake); changed {
		t.Errorf("a second node with the same mistake: %+v", again)
	}
	s, changed = s.next(2, "b", "t8", nil)
	if !changed || s.Conditions[0].Status != "True" {
		t.Errorf("a node that accepts it: %+v", s)
	}
	foreign := condition{Type: "Reviewed", Status: "True"}
	s.Conditions = append(s.Conditions, foreign)
	if s, _ = s.next(3, "a", "t9", nil); !slices.Contains(s.Conditions, foreign) || s.Conditions[0].LastTransitionTime != "t8" {
		t.Errorf("other conditions: %+v", s)
	}
	for i := range 2 * mostProblems {
		s, _ = s.next(3, strings.Repeat("n", i+1), "t", full)
	}
	if len(s.Problems) != mostProblems {
		t.Errorf("%d problems", len(s.Problems))
	}
}

func FuzzParseResource(f *testing.F) {
	f.Add([]byte(`{"metadata":{"namespace":"a","name":"web","generation":2},"spec":{"mode":"custom","allowed_domains":["example.com"]},"status":{"conditions":[{"type":"Accepted"}]}}`))
	f.Add([]byte(`{"metadata":{"namespace":"a","name":"web"},"spec":{"mode":"deny-all"},"status":[]}`))
	f.Add([]byte(`{"metadata":null,"spec":"\ud800"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseResource(data)
		if err != nil {
			return
		}
		if namespace, name, _ := strings.Cut(r.ref(), "/"); strings.Contains(namespace, ".") || strings.ContainsAny(name, "/ \x00") || len(r.ref()) > 127 {
			t.Errorf("the name %q", r.ref())
		}
		spec, err := r.parseSpec()
		if err == nil {
			if _, err := policy.Compile(spec, policy.Options{Version: 1}); err != nil {
				t.Errorf("accepted, and does not compile: %v", err)
			}
		} else if text := messageOf(err); len(text) > mostMessage+len("…") {
			t.Errorf("a message of %d bytes", len(text))
		}
		next, _ := r.Status.next(r.Metadata.Generation, "node", "now", err)
		if len(next.Problems) > max(mostProblems, len(r.Status.Problems)) {
			t.Errorf("%d problems", len(next.Problems))
		}
		if _, err := json.Marshal(next); err != nil {
			t.Error(err)
		}
	})
}

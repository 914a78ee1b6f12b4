package exchange

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"boxgate/policy"
	"boxgate/policy/name"
)

// replacedSecrets has another value at each look, as if it were replaced all the time. A snapshot keeps its value.
type replacedSecrets struct{ n atomic.Int64 }

func (s *replacedSecrets) Secret(context.Context, string) (name.Secret, error) {
	return name.NewSecret("value-" + strconv.FormatInt(s.n.Add(1), 10)), nil
}

func (s *replacedSecrets) Snapshot() BoundSecrets {
	v, _ := s.Secret(context.Background(), "")
	return snapshot{v}
}

type snapshot struct{ value name.Secret }

var errElsewhere = errors.New("not for this host")

func (s snapshot) Secret(context.Context, string) (name.Secret, error) { return s.value, nil }

func (snapshot) Permits(_ string, host name.Name, _ uint16) error {
	if host.String() != "a.test" {
		return errElsewhere
	}
	return nil
}

// TestValuesOfARequestAreOfOneSnapshot: while a secret is replaced all the time, the headers of a request have one value of it, and the next
// request has another. A request to a host that the secret is not for gets no value.
func TestValuesOfARequestAreOfOneSnapshot(t *testing.T) {
	t.Parallel()
	rules, err := policy.ParseHeaderRules([]byte(`{"*.test": {"headers": {"A": {"secret": "key_1:s"}, "B": {"secret": "key_1:s", "prefix": "Bearer "}}}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &Session{Core: &Core{Secrets: &replacedSecrets{}}}
	does := rules[0].OnRequests()
	last := ""
	for range 1000 {
		r := Decision{header: policy.HeaderRule{Request: does}}
		r.Request.Name, _ = name.Parse("a.test")
		if err := errors.Join(r.takeValues(s), r.setHeaders(t.Context())); err != nil || len(r.Set) != 2 {
			t.Fatal(len(r.Set), err)
		}
		a, b := r.Set[0].Value.Reveal(), strings.TrimPrefix(r.Set[1].Value.Reveal(), "Bearer ")
		if a != b || a == last {
			t.Fatalf("%s and %s, after %s", a, b, last)
		}
		last = a
	}
	r := Decision{header: policy.HeaderRule{Request: does}}
	r.Request.Name, _ = name.Parse("b.test")
	if err := r.takeValues(s); !errors.Is(err, errElsewhere) {
		t.Error(err)
	}
}

// movedSecrets is replaced all the time by a value for the other one of two hosts.
type movedSecrets struct{ n atomic.Int64 }

func (s *movedSecrets) Secret(context.Context, string) (name.Secret, error) {
	return name.Secret{}, errElsewhere // not of a snapshot
}

func (s *movedSecrets) Snapshot() BoundSecrets {
	return moved([]string{"a.test", "b.test"}[s.n.Add(1)%2])
}

// moved is a value for a host, which is its name.
type moved string

func (s moved) Secret(context.Context, string) (name.Secret, error) {
	return name.NewSecret(string(s)), nil
}

func (s moved) Permits(_ string, host name.Name, _ uint16) error {
	if host.String() != string(s) {
		return errElsewhere
	}
	return nil
}

// TestLoginsSendNoValueOfAnotherHost: a login during the replacement of a secret sends neither value to a host of the other one.
func TestLoginsSendNoValueOfAnotherHost(t *testing.T) {
	t.Parallel()
	k, sent := &Core{Secrets: &movedSecrets{}}, 0
	for range 100 {
		for _, host := range []string{"a.test", "b.test", "a.test"} {
			at, err := name.Parse(host)
			if err != nil {
				t.Fatal(err)
			}
			switch v, _, err := k.Credential(t.Context(), "key_1:s", at, 5432); {
			case err == nil && v.Reveal() != host:
				t.Fatalf("%s got the value for %s", host, v.Reveal())
			case err == nil:
				sent++
			case !errors.Is(err, errElsewhere):
				t.Fatal(err)
			}
		}
	}
	if sent == 0 {
		t.Error("no value was sent")
	}
}

// TestRevokedSecretsOfAKeyAreBounded: a key that deletes secrets without end takes bounded memory, and what it revoked stays revoked; requests
// with secrets of other keys are not cut.
func TestRevokedSecretsOfAKeyAreBounded(t *testing.T) {
	t.Parallel()
	var v Revocations
	first, others := []string{"key_1:0"}, []string{"key_2:s"}
	for i := range 10 * maxRevoked {
		v.Revoke("key_1:" + strconv.Itoa(i))
	}
	if len(v.last) > maxRevoked+1 {
		t.Errorf("%d are kept", len(v.last))
	}
	if !v.since(0, first) || v.since(0, others) || v.since(v.count.Load(), first) {
		t.Error("revocations are lost, or count for others")
	}
}

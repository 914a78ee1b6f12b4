// Package fleet has the keys and records that the hosts of a fleet share in etcd, the membership of one host, and the client of
// etcd. Each host keeps its boxes in its own store; etcd has only the facts that hosts must agree on.
//
// Below the prefix of a fleet, each host watches exactly the keys below "watched/". Presences, tokens and wrap keys are outside
// of it, so that their writes reach no other host.
package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// Protocol is the version of the keys and records of this program. A host refuses a fleet with a higher one, and ignores
// records of hosts with a higher one.
const Protocol = 1

// validHost matches IDs of hosts, see the HostID of package store.
var validHost = regexp.MustCompile(`^[0-9a-f]{6}$`)

// CheckHost returns an error if id is not the ID of a host: six hexadecimal digits.
func CheckHost(id string) error {
	if !validHost.MatchString(id) {
		return errors.New("the ID of a host has six hexadecimal digits, as `gateway fleet status` shows them")
	}
	return nil
}

// Keys are the keys of one fleet. Its methods return whole keys; prefixes end with a slash.
type Keys struct{ root string }

// KeysOf returns the keys of a fleet. Its name has letters, digits and hyphens, see package config.
func KeysOf(name string) Keys { return Keys{"/boxgate/" + name + "/"} }

// Root is the prefix of all keys of the fleet.
func (k Keys) Root() string { return k.root }

// Founding is the key of the [Founding].
func (k Keys) Founding() string { return k.root + "fleet" }

// Watched is the prefix that each host watches.
func (k Keys) Watched() string { return k.root + "watched/" }

// Hosts is the prefix of the [Host] records; it is watched.
func (k Keys) Hosts() string { return k.Watched() + "hosts/" }

// Host is the key of the [Host] record of a host.
func (k Keys) Host(id string) string { return k.Hosts() + id }

// Presences is the prefix of the [Presence] records.
func (k Keys) Presences() string { return k.root + "present/" }

// Presence is the key of the [Presence] of a host. It is bound to the host's lease.
func (k Keys) Presence(id string) string { return k.Presences() + id }

// Wrap is the key of the [Wrap] of a host.
func (k Keys) Wrap(id string) string { return k.root + "wrap/" + id }

// Wraps is the prefix of the [Wrap] records.
func (k Keys) Wraps() string { return k.root + "wrap/" }

// Left is the key that each host writes that takes a host out. The value is the ID of that host; its revision grows with each of them.
func (k Keys) Left() string { return k.root + "left" }

// SharedKey is the key of the [SharedKey] record.
func (k Keys) SharedKey() string { return k.root + "shared-key" }

// Asks is the prefix of the requests of hosts for the shared key, by their IDs; it is watched.
func (k Keys) Asks() string { return k.Watched() + "asks/" }

// Names is the prefix of the names of boxes, see package directory.
func (k Keys) Names() string { return k.root + "names/" }

// Domains is the prefix of the domains of public URLs, see package directory. Each host follows it.
func (k Keys) Domains() string { return k.root + "domains/" }

// Boxes is the prefix of the boxes of a host.
func (k Keys) Boxes(host string) string { return k.root + "boxes/" + host + "/" }

// Claims is the key whose revision is a condition of each claim of a name by a host, see package directory.
func (k Keys) Claims(host string) string { return k.root + "claims/" + host }

// Certificates is the prefix of the certificates of public URLs and of their locks, see package certstore. The founding is part of it: a fleet
// that is founded again cannot open the values of an earlier one.
func (k Keys) Certificates(founding string) string { return k.root + "certificates/" + founding + "/" }

// Token is the key of the [Token] with this public ID. It is bound to a lease that ends with the token.
func (k Keys) Token(id string) string { return k.root + "tokens/" + id }

// Founding describes the fleet. It is written once, by the first host.
type Founding struct {
	ID       string    `json:"id"` // random; a fleet founded again under the same name has another
	Protocol int       `json:"protocol"`
	CA       []byte    `json:"ca"` // certificate of the fleet's authority, PEM
	At       time.Time `json:"at"`
}

// Host is a member of the fleet. The record exists from joining to leaving.
type Host struct {
	ID       string    `json:"id"`
	Protocol int       `json:"protocol"`
	Name     string    `json:"name"` // the host name of the machine, for people
	Key      []byte    `json:"key"`  // SHA-256 of the public key (SubjectPublicKeyInfo) of its certificates
	Joined   time.Time `json:"joined"`
	Cordoned bool      `json:"cordoned,omitempty"` // takes no new boxes

	// Ingress is the address and port at which other hosts reach its public URLs; empty: they do not. Agreement is its public key for
	// secrets with each other host, see [fleet/pki.Agreement].
	Ingress   string `json:"ingress,omitempty"`
	Agreement []byte `json:"agreement,omitempty"`
	Address   string `json:"address,omitempty"` // IP address and port for the other hosts; may be empty
}

// Presence is a running gateway. It ends with the lease of its host.
type Presence struct {
	Instance string    `json:"instance"` // random, one for each process
	Boot     string    `json:"boot"`     // the boot ID of the machine
	Store    string    `json:"store"`    // device and inode of the store, which one process of a machine can lock
	Version  string    `json:"version"`
	Boxes    int       `json:"boxes"`              // as of the last report, see [fleet/member.Session.Report]
	Cordoned bool      `json:"cordoned,omitempty"` // the gateway knew by then that it takes no new boxes
	Since    time.Time `json:"since"`
	// Kinds are the kinds of shared objects that the gateway applies, beside API keys, see package shared. They are here and not in the
	// [Host], because a gateway keeps fields of that record that it does not know: an earlier version would seem to apply them.
	Kinds []string `json:"kinds,omitempty"`
}

// Wrap is the wrap key of a host, and the secrets sealed to it.
type Wrap struct {
	Recipient string `json:"recipient"` // age X25519
	CA        []byte `json:"ca"`        // the private key of the fleet's authority, sealed
	// Proof shows that a holder of the authority's key has written the recipient, see [fleet/pki.ProveRecipient]. Hosts of versions without
	// shared keys lack it.
	Proof []byte `json:"proof,omitempty"`
	// Shared are shared keys by their IDs, sealed: the present one, and one that a change is about to use. See package sharedkey.
	Shared map[string][]byte `json:"shared,omitempty"`
}

// SharedKey names the key that seals the shared secrets of the fleet. The key itself is in the [Wrap] of each host.
type SharedKey struct {
	ID   string `json:"id,omitempty"` // random; empty: not made yet
	Left int64  `json:"left"`         // revision of [Keys.Left] when it was made; a host that left later knows it
	Next string `json:"next,omitempty"`
}

// Token lets one host join. The record has no secret that can be read without the token itself.
type Token struct {
	By string `json:"by"` // the host that made it
	CA []byte `json:"ca"` // the private key of the fleet's authority, sealed with the token
}

// Identity is the membership of this host, as its store keeps it, sealed.
type Identity struct {
	Fleet    string `json:"fleet"`    // name
	Founding string `json:"founding"` // ID of the [Founding]
	Host     string `json:"host"`
	CA       []byte `json:"ca"`   // certificate of the fleet's authority, PEM
	Key      []byte `json:"key"`  // private key of the host's certificates, PKCS #8
	Wrap     string `json:"wrap"` // age identity
}

// maxRecord is the largest record in bytes. etcd refuses requests above 1.5 MiB.
const maxRecord = 64 << 10

// Encode returns the stored form of a record.
func Encode(record any) (string, error) {
	text, err := json.Marshal(record)
	if err == nil && len(text) > maxRecord {
		err = fmt.Errorf("a record of the fleet has %d bytes; the limit is %d", len(text), maxRecord)
	}
	return string(text), err
}

// Decode reads a record. Unknown fields are ignored: a host of a later version may have written them.
func Decode[T any](text []byte) (record T, err error) {
	if len(text) > maxRecord {
		return record, fmt.Errorf("a record of the fleet has %d bytes; the limit is %d", len(text), maxRecord)
	}
	if err := json.Unmarshal(text, &record); err != nil {
		return record, fmt.Errorf("a record of the fleet is not readable: %w", err)
	}
	return record, nil
}

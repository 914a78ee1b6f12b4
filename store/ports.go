package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"boxgate/policy"
	"boxgate/store/document"
	"boxgate/store/layout"
)

// SharedPorts are the TCP ports of a box that are all reachable at their public host names.
type SharedPorts struct {
	Box   policy.BoxID `json:"box"`
	Token *KeyHash     `json:"token,omitempty"` // hash of the token that opens them; nil: they are open to everyone
	// Fingerprint tells the token from others; records of older versions lack it.
	Fingerprint string   `json:"fingerprint,omitempty"`
	Except      []uint16 `json:"except,omitempty"` // ports that are not shared
	Host        string   `json:"host,omitempty"`   // of requests, for the application; "": as the visitor sent it
	HTTPS       []uint16 `json:"https,omitempty"`  // ports whose applications speak TLS
	// Owner is the ID of the API key that shared them; "" for the operator's.
	Owner string `json:"owner,omitempty"`
	// SharedAt is when the ports were shared with these settings. No two versions of a box's ports have the same time.
	SharedAt time.Time `json:"shared_at"`
}

// portsPrefix is the prefix of the keys of shared ports, before the ID of the box, in the bucket of settings: versions that do not
// have shared ports ignore them.
const portsPrefix = "ports "

// SetPorts stores the shared ports of a box, replacing the earlier ones.
func (db URLs) SetPorts(p SharedPorts) error {
	return db.update(func(tx *transaction) error {
		if err := requireBox(tx, p.Box); err != nil {
			return err
		}
		if err := uncountPorts(tx, p.Box); err != nil {
			return err
		}
		text, err := json.Marshal(p)
		if err != nil {
			return err
		}
		tx.adjustOnCommit(p.Owner, 1, Holdings{URLs: 1})
		return tx.putSealed(layout.Settings, portsPrefix+string(p.Box), map[string]string{"ports": string(text)})
	})
}

// Ports returns the shared ports of a box, or [ErrNotFound].
func (db URLs) Ports(id policy.BoxID) (p SharedPorts, err error) {
	err = db.view(func(tx *transaction) error {
		p, err = getPorts(tx, id)
		return err
	})
	return p, err
}

// DeletePorts ends the sharing of a box's ports, or returns [ErrNotFound].
func (db URLs) DeletePorts(id policy.BoxID) error {
	return db.update(func(tx *transaction) error {
		if _, err := getPorts(tx, id); err != nil {
			return err
		}
		return deletePorts(tx, id)
	})
}

// deletePorts deletes the shared ports of a box, if it has any.
func deletePorts(tx *transaction, id policy.BoxID) error {
	if err := uncountPorts(tx, id); err != nil {
		return err
	}
	return tx.delete(layout.Settings, []byte(portsPrefix+string(id)))
}

// uncountPorts subtracts shared ports that are about to be replaced or deleted.
func uncountPorts(tx *transaction, id policy.BoxID) error {
	old, err := getPorts(tx, id)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	tx.subtractReplaced(old.Owner, Holdings{URLs: 1}, err)
	return nil // a damaged record can be replaced
}

func getPorts(tx *transaction, id policy.BoxID) (p SharedPorts, err error) {
	var stored map[string]string // like all settings
	found, err := tx.getSealed(layout.Settings, portsPrefix+string(id), &stored)
	switch {
	case err != nil:
		return SharedPorts{}, err
	case !found:
		return SharedPorts{}, fmt.Errorf("shared ports of box %s: %w", id, ErrNotFound)
	}
	if err = document.Decode([]byte(stored["ports"]), &p); err != nil || p.Box != id {
		return SharedPorts{}, fmt.Errorf("the record of the shared ports of box %s is damaged", id)
	}
	return p, nil
}

// countPorts calls add for the shared ports of each box.
func countPorts(tx *transaction, add func(owner string, objects Holdings)) error {
	settings, err := tx.table(layout.Settings)
	if err != nil {
		return err
	}
	for _, key := range settings.Keys([]byte(portsPrefix)) {
		p, err := getPorts(tx, policy.BoxID(strings.TrimPrefix(string(key), portsPrefix)))
		if err != nil {
			return err
		}
		add(p.Owner, Holdings{URLs: 1})
	}
	return nil
}

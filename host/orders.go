package host

import (
	"errors"
	"slices"
	"sync"
	"time"

	"boxgate/policy"
)

const (
	// ordersOfAll bounds how many certificates are ordered in an hour for the URLs of API keys that are no admin's: three quarters
	// of what Let's Encrypt grants an account, so that the rest is the operator's.
	ordersOfAll = 75
	// ordersOfBox bounds those for the URLs of one box. One key has no more than are left to all.
	ordersOfBox = 20
	orderTime   = time.Hour
)

var (
	errOrdersOfBox    = errors.New("the public URLs of its box have had as many certificates ordered as they may in an hour (20)")
	errOrdersOfNobody = errors.New("its public URL is gone")
	errOrdersOfKey    = errors.New("the API key that made its URL has had as many certificates ordered as one may in an hour: no more than are left of 75 for all keys")
)

// orders bounds how many certificates are ordered on the operator's accounts at issuers. Safe for concurrent use.
type orders struct {
	mu   sync.Mutex
	past []order // of the last hour, the earliest first
}

// order is one that was made for a URL.
type order struct {
	at   time.Time
	host string
	key  string
	box  policy.BoxID
}

// take counts an order for a URL of a box that a key has made, or returns why it may not be made. Last, it asks rate for the key's own
// quota.
func (o *orders) take(host, key string, box policy.BoxID, now time.Time, rate func() error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.past) > 0 && now.Sub(o.past[0].at) >= orderTime {
		o.past = o.past[1:]
	}
	ofKey, ofBox := 0, 0
	for _, past := range o.past {
		if past.key == key {
			ofKey++
		}
		if past.box == box {
			ofBox++
		}
	}
	switch {
	case ofBox >= ordersOfBox:
		return errOrdersOfBox
	case ofKey >= ordersOfAll-len(o.past):
		return errOrdersOfKey
	}
	if err := rate(); err != nil {
		return err
	}
	o.past = append(o.past, order{now, host, key, box})
	return nil
}

// again counts another order for a host, as its latest one is counted, and returns the key; false: none is counted.
func (o *orders) again(host string, now time.Time) (key string, counted bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, latest := range slices.Backward(o.past) {
		if latest.host == host {
			latest.at = now
			o.past = append(o.past, latest)
			return latest.key, true
		}
	}
	return "", false
}

package urls

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"time"

	"boxgate/policy"
	quotas "boxgate/quota"
	"boxgate/store"
)

const (
	// ordersOfAll is the maximum number of certificates ordered per hour for URLs of API keys without the role admin:
	// three quarters of Let's Encrypt's limit for an account; the rest is for the operator.
	ordersOfAll = 75
	// ordersOfBox is the maximum for the URLs of one box. One key may order at most as many as remain for all keys.
	ordersOfBox = 20
	orderTime   = time.Hour
)

var (
	errOrdersOfBox = errors.New("the public URLs of its box have had as many certificates ordered as they may in an hour (20)")
	errURLGone     = errors.New("its public URL was deleted")
	errOrdersOfKey = errors.New("the API key that created its URL has reached its share of the 75 certificate orders per hour for all keys")
)

// Orders limits the certificates ordered with the operator's accounts at issuers. Safe for concurrent use.
type Orders struct {
	table   *Table
	domains *Domains
	quotas  *quotas.Book

	mu   sync.Mutex
	past []order // of the last hour, oldest first
}

// order is one order for a URL.
type order struct {
	at   time.Time
	host string
	key  string
	box  policy.BoxID
}

// NewOrders returns the limits for the URLs of a table.
func NewOrders(table *Table, domains *Domains, book *quotas.Book) *Orders {
	return &Orders{table: table, domains: domains, quotas: book}
}

// Owner returns the ID of the API key that created the URL of a host. The gateway's own host belongs to the operator.
func (o *Orders) Owner(host string) string {
	target, _ := o.table.Lookup(host)
	return cmp.Or(target.Owner, store.OperatorKey)
}

// Order counts an order of a certificate, or returns an error if it exceeds a limit. Orders of admin keys are not limited
// here.
func (o *Orders) Order(host string) error {
	target, served := o.table.Lookup(host)
	if !served && host != o.table.ownHost { // its URL was just deleted; the order must not count as the operator's
		return errURLGone
	}
	owner, holder := o.holder(host)
	if holder.Operator {
		return nil
	}
	return o.countOrder(host, owner, target.Box, time.Now(), func() error { return o.quotas.Rate(holder, quotas.Certificates) })
}

// Again counts the second order of a failed attempt, for the key of the first, since the URL may have been deleted in
// between.
func (o *Orders) Again(host string) {
	if key, counted := o.repeatOrder(host, time.Now()); counted {
		_ = o.quotas.Rate(quotas.Holder{Type: quotas.APIKey, ID: key}, quotas.Certificates) // the order is already made: if the quota is exceeded, the next one is refused
	}
}

// holder returns the API key that created the URL of a host. A key that is no longer valid does not count as an
// operator's.
func (o *Orders) holder(host string) (owner string, h quotas.Holder) {
	owner = o.Owner(host)
	if caller, valid := o.domains.keyOf(owner); valid {
		return owner, caller.Holder()
	}
	return owner, quotas.Holder{Type: quotas.APIKey, ID: owner}
}

// countOrder counts an order, or returns an error if it exceeds a limit. It checks the key's own quota last, by calling rate.
func (o *Orders) countOrder(host, key string, box policy.BoxID, now time.Time, rate func() error) error {
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

// repeatOrder repeats the latest counted order of a host, and returns its key. counted is false if no order is found.
func (o *Orders) repeatOrder(host string, now time.Time) (key string, counted bool) {
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

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

// Orders bounds how many certificates are ordered on the operator's accounts at issuers. Safe for concurrent use.
type Orders struct {
	table   *Table
	domains *Domains
	quotas  *quotas.Book

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

// NewOrders makes the bounds of the URLs of a table.
func NewOrders(table *Table, domains *Domains, book *quotas.Book) *Orders {
	return &Orders{table: table, domains: domains, quotas: book}
}

// Owner returns the API key that has made the URL of a host: the operator's for the gateway's own.
func (o *Orders) Owner(host string) string {
	target, _ := o.table.Lookup(host)
	return cmp.Or(target.Owner, store.OperatorKey)
}

// Order counts an order of a certificate, or returns why it may not be made. The orders of admin keys are not bounded here.
func (o *Orders) Order(host string) error {
	target, served := o.table.Lookup(host)
	if !served && host != o.table.own { // its URL has just been deleted: it is nobody's, the operator's least of all
		return errOrdersOfNobody
	}
	owner, holder := o.holder(host)
	if holder.Operator {
		return nil
	}
	return o.take(host, owner, target.Box, time.Now(), func() error { return o.quotas.Rate(holder, quotas.Certificates) })
}

// Again counts the second order of an attempt that has failed, for the key of the first: the URL may be gone by now.
func (o *Orders) Again(host string) {
	if key, counted := o.again(host, time.Now()); counted {
		_ = o.quotas.Rate(quotas.Holder{What: quotas.APIKey, ID: key}, quotas.Certificates) // the order is made: without room for it, the next is refused
	}
}

// holder returns the API key that has made the URL of a host. A key that is no longer valid is no operator.
func (o *Orders) holder(host string) (owner string, h quotas.Holder) {
	owner = o.Owner(host)
	if caller, valid := o.domains.keyOf(owner); valid {
		return owner, caller.Holder()
	}
	return owner, quotas.Holder{What: quotas.APIKey, ID: owner}
}

// take counts an order for a URL of a box that a key has made, or returns why it may not be made. Last, it asks rate for the key's own
// quota.
func (o *Orders) take(host, key string, box policy.BoxID, now time.Time, rate func() error) error {
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
func (o *Orders) again(host string, now time.Time) (key string, counted bool) {
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

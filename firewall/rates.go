package firewall

import (
	"context"
	"errors"
	"fmt"

	"boxgate/policy"
)

// SetRates changes how much a box may send and receive. When it returns nil, the new limits apply. On error the previous
// limits apply, unless the error reports that restoring them failed.
func (f *Firewall) SetRates(ctx context.Context, id policy.BoxID, rates Rates) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, ok := f.boxes.byID[id]
	if !ok {
		return fmt.Errorf("firewall: rates of box %s: %w", id, errUnknownBox)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	before := b.Rates
	if before == rates {
		return nil
	}
	err := f.setRates(b, rates)
	if err != nil {
		err = fmt.Errorf("firewall: rates of box %s: %w", id, errors.Join(err, f.setRates(b, before)))
	}
	return err
}

func (f *Firewall) setRates(b *box, rates Rates) error {
	if b.SendRate != rates.Send || b.MaxSend != rates.MaxSend {
		if err := f.table.SetSendRate(&b.Entry, rates.Send, rates.MaxSend); err != nil {
			return err
		}
		b.Rates.Send, b.Rates.MaxSend = rates.Send, rates.MaxSend
	}
	if b.Rates.Receive != rates.Receive {
		if err := f.links.SetReceiveRate(b.place.Index, rates.Receive); err != nil {
			return err
		}
		b.Rates.Receive = rates.Receive
	}
	return nil
}

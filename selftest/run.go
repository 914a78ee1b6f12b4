package selftest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"boxgate/selftest/probe"
	"boxgate/selftest/watch"
)

// Limits of a run.
const (
	eventWait = 3 * time.Second        // for decisions that are counted before they are logged
	drainTime = 100 * time.Millisecond // for packets still in transit
)

// Run runs all attacks and returns the card. It takes a few seconds. An error means that there is no card because the
// run could not start or finish. Attacks that could not be run are in the card.
func Run(ctx context.Context, cfg Config) (Card, error) {
	card := Card{Mode: cfg.Policy.Spec().Mode, Version: cfg.Policy.Version(), Started: time.Now()}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := cfg.findLink(); err != nil {
		return card, err
	}
	if err := cfg.checkStack(); err != nil {
		return card, err
	}
	random := make([]byte, 4)
	_, _ = rand.Read(random) // never fails (crypto/rand)
	prefix := []byte("bgst" + hex.EncodeToString(random))

	b := &builder{cfg: &cfg, token: func(id int) []byte { return watch.Token(prefix, id) }}
	defer b.closeCanaries()
	if err := b.build(prefix); err != nil {
		return card, err
	}
	w, err := watch.OpenWire(cfg.link, prefix, b.watched())
	if err != nil {
		return card, err
	}
	log := follow(cfg.Events(ctx))
	if cfg.Expect != nil {
		defer cfg.Expect(b.expected())()
	}
	answers, runErr := b.perform(ctx)
	if runErr == nil {
		log.await(ctx, b.attacks, eventWait)
		sleep(ctx, drainTime)
	}
	sightings, missed, err := w.Close()
	if err := errors.Join(runErr, err, ctx.Err()); err != nil {
		return card, err
	}
	j := judge{answers: answers, sightings: sightings, missed: missed, logged: log.assign(b.attacks)}
	for _, a := range b.attacks {
		card.Lines = append(card.Lines, j.line(a))
	}
	card.Duration = time.Since(card.Started)
	return card, nil
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// perform runs all tasks in two processes: one with the privileges of any process of a box, and one for frames.
func (b *builder) perform(ctx context.Context) (map[int]probe.Answer, error) {
	plain, raw := probe.Plan{}, probe.Plan{Raw: true}
	for _, a := range b.attacks {
		switch {
		case a.Verdict == Skipped:
		case a.task.Kind == probe.Frame:
			raw.Tasks = append(raw.Tasks, a.task)
		default:
			plain.Tasks = append(plain.Tasks, a.task)
		}
	}
	var reports [2]probe.Report
	group, ctx := errgroup.WithContext(ctx)
	for i, p := range []probe.Plan{plain, raw} {
		group.Go(func() (err error) {
			reports[i], err = probe.Start(ctx, b.cfg.NetNS, b.cfg.Command, p)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	answers := map[int]probe.Answer{}
	for _, r := range reports {
		for _, a := range r.Answers {
			answers[a.ID] = a
		}
	}
	return answers, nil
}

// Probe is the probing process, which [Run] starts: it reads a plan from in, sends the traffic, and writes a report to out.
func Probe(in io.Reader, out io.Writer) error { return probe.Serve(in, out) }

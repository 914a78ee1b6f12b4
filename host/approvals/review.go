package approvals

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/audit/export"
	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store"
)

// Names under which answers that no API call has given are recorded.
const (
	byCeiling  = "automatic"
	byReviewer = "reviewer"
)

const (
	reviewers       = 4                // reviews in progress
	mostQueued      = 1024             // reviews that wait for their turn; others are left to people
	reviewTime      = 30 * time.Second // for one review
	mostAnswerBytes = 16 << 10
)

// Review is a request of a box as its reviewer gets it.
type Review struct {
	Box       policy.BoxID   `json:"box"`
	BoxName   string         `json:"box_name,omitempty"`
	ID        string         `json:"id"`
	Entry     string         `json:"entry"`
	Reason    string         `json:"reason"`     // text of the box
	Lasts     int64          `json:"expires_in"` // seconds
	CreatedAt time.Time      `json:"created_at"`
	Candidate *api.Candidate `json:"candidate"`
}

// Reviewer answers requests before people do.
type Reviewer interface {
	// Review returns the answer to a request. With an error, the request is left to people.
	Review(ctx context.Context, r Review) (api.ApprovalAnswer, error)
}

// review has a new request answered automatically or by the reviewer, if there is either. It returns the request as it is then.
// The caller has the turn of the box.
func (s *Service) review(ctx context.Context, a store.Approval, c api.Candidate) store.Approval {
	if s.Automatic && withinCeiling(a, c) {
		if a = s.approveByCeiling(ctx, a, c); a.State != string(api.ApprovalOpen) {
			return a
		}
	}
	if s.Reviewer != nil {
		select {
		case s.queue <- a:
		default:
			s.counts.reviews.WithLabelValues(reviewDropped).Inc()
			s.Log.Warn("too many requests wait for the reviewer; this one is left to people", zap.String("box", string(a.Box)), zap.String("approval", a.ID))
		}
	}
	return a
}

// withinCeiling reports whether the ceiling is made to limit such a request: a ceiling without request rules for a host does not mean that
// the request rules of policies are open.
func withinCeiling(a store.Approval, c api.Candidate) bool { return a.Method == "" || c.Judged }

// approveByCeiling approves a request for a time, if that has the effect of its candidate. It returns the request as it is then. The caller
// has the turn of the box.
func (s *Service) approveByCeiling(ctx context.Context, a store.Approval, c api.Candidate) store.Approval {
	given := api.ApprovalAnswer{Answer: string(api.ApprovalOnce), Reason: "within policy.ceiling: approved automatically", Digest: c.Digest}
	answered, err := s.answerFor(ctx, byCeiling, a, given)
	if err != nil {
		s.Log.Warn("a request of a box for access could not be approved automatically", zap.String("box", string(a.Box)), zap.String("approval", a.ID), zap.Error(err))
		return a
	}
	return answered
}

// answerFor applies an answer that no API call has given, and records it in the audit trail.
func (s *Service) answerFor(ctx context.Context, by string, a store.Approval, given api.ApprovalAnswer) (store.Approval, error) {
	ctx = api.WithCaller(context.WithoutCancel(ctx), api.Caller{Name: by})
	answered, state, err := s.apply(ctx, a, given)
	if err != nil {
		return a, err
	}
	s.record(s.view(ctx, answered), by, given, state)
	return answered, nil
}

// Serve passes new requests to the reviewer until ctx ends. The boxes must have been recovered.
func (s *Service) Serve(ctx context.Context) error {
	if err := s.takeStock(); err != nil {
		s.Log.Warn("the open requests of boxes for access could not be read; they are left to people", zap.Error(err))
	}
	if s.Reviewer == nil {
		<-ctx.Done()
		return nil
	}
	var workers sync.WaitGroup
	for range reviewers {
		workers.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case a := <-s.queue:
					s.ask(ctx, a)
				}
			}
		})
	}
	workers.Wait()
	return nil
}

// takeStock counts the open requests that an earlier process has left, and has those answered that it could not.
func (s *Service) takeStock() error {
	if !s.Enabled {
		return nil
	}
	for _, id := range s.Boxes.IDs() {
		if err := s.takeStockOf(id); err != nil {
			return s.orReplaced(err)
		}
	}
	return nil
}

func (s *Service) takeStockOf(id policy.BoxID) error {
	box := s.of(id)
	box.turn.Lock()
	defer box.turn.Unlock()
	stored, err := s.Store.List(id)
	if err != nil {
		return err
	}
	for _, a := range stored {
		if a.State == string(api.ApprovalOpen) && isAlive(a) && s.Automatic {
			a = s.approveLate(a)
		}
		box.note(a)
		if s.Reviewer == nil || a.State != string(api.ApprovalOpen) || a.Human != "" || !isAlive(a) || a.CreatedAt.After(s.started) {
			continue
		}
		select {
		case s.queue <- a:
		default:
			s.counts.reviews.WithLabelValues(reviewDropped).Inc()
		}
	}
	return nil
}

// approveLate approves a request that the process that was replaced has left. The caller has the turn of the box.
func (s *Service) approveLate(a store.Approval) store.Approval {
	ctx := context.Background()
	c, err := s.Rules.Candidate(ctx, a.Box, destinationOf(a))
	if err != nil || !withinCeiling(a, c) {
		return a
	}
	return s.approveByCeiling(ctx, a, c)
}

// ask has one request reviewed. A request that was answered or has changed its effect in the meantime stays as it is.
func (s *Service) ask(ctx context.Context, a store.Approval) {
	ctx, cancel := context.WithTimeout(ctx, reviewTime)
	defer cancel()
	a, err := s.find(a.Box, a.ID)
	if err != nil || a.State != string(api.ApprovalOpen) || a.Human != "" {
		return
	}
	shown := s.view(ctx, a)
	if shown.Candidate == nil {
		return
	}
	boxName, _ := s.Boxes.NameOf(a.Box)
	given, err := s.Reviewer.Review(ctx, Review{
		Box: a.Box, BoxName: boxName, ID: a.ID, Entry: a.Entry, Reason: a.Reason, Lasts: int64(a.Lasts / time.Second), CreatedAt: a.CreatedAt, Candidate: shown.Candidate,
	})
	if err == nil {
		err = checkText("/reason", given.Reason)
	}
	if err != nil {
		s.counts.reviews.WithLabelValues(reviewFailed).Inc()
		s.Log.Warn("the reviewer did not answer a request of a box for access; it is left to people", zap.String("box", string(a.Box)), zap.String("approval", a.ID), zap.Error(err))
		return
	}
	turn := s.of(a.Box)
	turn.turn.Lock()
	defer turn.turn.Unlock()
	current, err := s.find(a.Box, a.ID)
	if err != nil || current.State != string(api.ApprovalOpen) {
		return
	}
	_, err = s.answerFor(ctx, byReviewer, current, given)
	s.counts.reviews.WithLabelValues(resultOf(err)).Inc()
	if err != nil {
		s.Log.Warn("the answer of the reviewer could not be applied; the request is left to people", zap.String("box", string(a.Box)), zap.String("approval", a.ID), zap.Error(err))
	}
}

// Webhook is a [Reviewer] that is asked by an HTTPS request, signed according to Standard Webhooks 1.0.0
// (https://www.standardwebhooks.com). Its response is the answer.
type Webhook struct {
	URL    string
	Key    func(ctx context.Context) (name.Secret, error) // the signing keys
	client *http.Client
}

// NewWebhook returns a reviewer at a URL. roots are trusted for its certificate.
func NewWebhook(url string, key func(ctx context.Context) (name.Secret, error), roots *x509.CertPool) *Webhook {
	return &Webhook{URL: url, Key: key, client: &http.Client{
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, MaxResponseHeaderBytes: 64 << 10, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// webhookBody is the body of a request to a reviewer.
type webhookBody struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"`
	Data      Review    `json:"data"`
}

// webhookAnswer is the response of a reviewer.
type webhookAnswer struct {
	Answer    string `json:"answer"`
	Reason    string `json:"reason"`
	ExpiresIn int64  `json:"expires_in"` // seconds; 0: as asked
	Candidate string `json:"candidate"`  // digest
}

// Review implements [Reviewer].
func (w *Webhook) Review(ctx context.Context, r Review) (given api.ApprovalAnswer, err error) {
	body, err := json.Marshal(webhookBody{"boxgate.approval", fault.Now().UTC(), r})
	if err != nil {
		return given, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(body))
	if err != nil {
		return given, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "boxgate-approvals")
	key, err := w.Key(ctx)
	if err != nil {
		return given, err
	}
	if err := export.SignWebhook(req.Header, key, r.ID, body); err != nil {
		return given, err
	}
	res, err := w.client.Do(req)
	if err != nil {
		return given, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return given, fmt.Errorf("the reviewer answered %d", res.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, mostAnswerBytes))
	if err != nil {
		return given, err
	}
	var a webhookAnswer
	if err := json.Unmarshal(text, &a); err != nil {
		return given, fmt.Errorf("the response of the reviewer is not an answer: %w", err)
	}
	if a.ExpiresIn < 0 || a.ExpiresIn > int64(mostAnswer/time.Second) {
		return given, errors.New("the answer of the reviewer is for a negative time, or for more than 30 days")
	}
	return api.ApprovalAnswer{Answer: a.Answer, Lasts: time.Duration(a.ExpiresIn) * time.Second, Reason: a.Reason, Digest: a.Candidate}, nil
}

package sshflow

import (
	"context"
	"io"

	gossh "golang.org/x/crypto/ssh"
	"golang.org/x/time/rate"
)

// Limits on the key exchanges that a client may start on one connection. Each costs as much as a handshake; clients start one
// after a gigabyte or an hour.
const (
	rekeyRate  = rate.Limit(1)
	rekeyBurst = 8
)

// pacedSigner rate-limits the signatures of key exchanges.
type pacedSigner struct {
	gossh.Signer
	limit *rate.Limiter
	ctx   context.Context
}

// Paced returns the host key of one connection, which limits how often the client starts a key exchange: up to eight times, then
// once a second. A signature fails when ctx ends. The key must have one algorithm.
func Paced(ctx context.Context, hostKey gossh.Signer) gossh.Signer {
	return &pacedSigner{hostKey, rate.NewLimiter(rekeyRate, rekeyBurst), ctx}
}

// Sign implements [gossh.Signer].
func (s *pacedSigner) Sign(random io.Reader, data []byte) (*gossh.Signature, error) {
	if err := s.limit.Wait(s.ctx); err != nil {
		return nil, err
	}
	return s.Signer.Sign(random, data)
}

// SignWithAlgorithm implements [gossh.AlgorithmSigner]. It ignores the algorithm: the key has one.
func (s *pacedSigner) SignWithAlgorithm(random io.Reader, data []byte, _ string) (*gossh.Signature, error) {
	return s.Sign(random, data)
}

package ssh

import (
	"context"
	"io"

	gossh "golang.org/x/crypto/ssh"
	"golang.org/x/time/rate"
)

// Limits on the key exchanges that a box may start on one connection. Each costs as much as a handshake; clients start one
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

// Sign implements [gossh.Signer].
func (s *pacedSigner) Sign(random io.Reader, data []byte) (*gossh.Signature, error) {
	if err := s.limit.Wait(s.ctx); err != nil {
		return nil, err
	}
	return s.Signer.Sign(random, data)
}

// SignWithAlgorithm implements [gossh.AlgorithmSigner]. It ignores the algorithm: the gateway's host keys have one
// algorithm each.
func (s *pacedSigner) SignWithAlgorithm(random io.Reader, data []byte, _ string) (*gossh.Signature, error) {
	return s.Sign(random, data)
}

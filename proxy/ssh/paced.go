package ssh

import (
	"context"
	"io"

	gossh "golang.org/x/crypto/ssh"
	"golang.org/x/time/rate"
)

// How often a box may have new keys made on one connection. Each time costs as much as a handshake; by themselves clients do
// it after a gigabyte or an hour.
const (
	rekeyRate  = rate.Limit(1)
	rekeyBurst = 8
)

// pacedSigner signs exchanges of keys no faster than a limiter allows.
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

// SignWithAlgorithm implements [gossh.AlgorithmSigner]: the kinds of keys that the gateway is known by have one algorithm each.
func (s *pacedSigner) SignWithAlgorithm(random io.Reader, data []byte, _ string) (*gossh.Signature, error) {
	return s.Sign(random, data)
}

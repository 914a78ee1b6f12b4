package sshflow

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"
	"golang.org/x/time/rate"
)

func TestNewKeysArePaced(t *testing.T) {
	t.Parallel()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := gossh.NewSignerFromSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	signer := Paced(ctx, key).(*pacedSigner)
	if got := signer.limit; got.Limit() != 1 || got.Burst() != 8 {
		t.Errorf("%v key exchanges a second after %d", got.Limit(), got.Burst())
	}
	signer.limit = rate.NewLimiter(rate.Every(time.Hour), 2)
	for range 2 {
		if _, err := signer.SignWithAlgorithm(nil, []byte("x"), ""); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if _, err := signer.Sign(nil, []byte("x")); err == nil {
		t.Error("a third key exchange is not delayed")
	}
}

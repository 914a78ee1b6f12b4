package sshd

import (
	"errors"
	"net"
	"time"

	"go.uber.org/zap"
	gossh "golang.org/x/crypto/ssh"

	"boxgate/internal/sshflow"
	"boxgate/proxy/recovery"
)

// version identifies the gateway. It begins like OpenSSH's, because OpenSSH sends eow@openssh.com, which [session] handles, only to
// peers with such a version (SSH_NEW_OPENSSH in its compat.c).
const version = "SSH-2.0-OpenSSH_9.9 boxgate"

// The limits of strangers.
const (
	// loginTime is how long a client may take from its connection until it is logged in. People type in it.
	loginTime = 30 * time.Second
	// maxTries is the number of keys and passwords that a client may try on one connection.
	maxTries = 6
	// failTime is the time from a wrong password to its answer, and keyFailTime that from a signature by a wrong key. They hide how long
	// looking up the box and the key has taken.
	failTime    = time.Second
	keyFailTime = 20 * time.Millisecond
	// mostFailing is the maximum number of such answers that are being delayed.
	mostFailing = 256
	// maxPassword is the maximum length of a password in bytes.
	maxPassword = 512
)

// The results of logins, in metrics.
const (
	byPassword  = "password"
	byPublicKey = "public_key"
	refused     = "refused"
	overLimit   = "over_limit"
)

// algorithms returns the algorithms offered: none with SHA-1, CBC or encrypt-and-MAC.
func algorithms() gossh.Config {
	return gossh.Config{
		KeyExchanges: []string{
			gossh.KeyExchangeMLKEM768X25519, gossh.KeyExchangeCurve25519, gossh.KeyExchangeECDHP256, gossh.KeyExchangeECDHP384, gossh.KeyExchangeECDHP521,
		},
		Ciphers: []string{
			gossh.CipherAES128GCM, gossh.CipherChaCha20Poly1305, gossh.CipherAES256GCM,
			gossh.CipherAES128CTR, gossh.CipherAES192CTR, gossh.CipherAES256CTR,
		},
		MACs: []string{gossh.HMACSHA256ETM, gossh.HMACSHA512ETM},
	}
}

// clientKeys are the algorithms of signatures that public keys log in with: RSA only with SHA-2.
func clientKeys() []string {
	return []string{
		gossh.KeyAlgoED25519, gossh.KeyAlgoSKED25519, gossh.KeyAlgoSKECDSA256,
		gossh.KeyAlgoECDSA256, gossh.KeyAlgoECDSA384, gossh.KeyAlgoECDSA521, gossh.KeyAlgoRSASHA256, gossh.KeyAlgoRSASHA512,
	}
}

// errRefused is the end of every login that fails. Its text does not reach the client.
var errRefused = errors.New("refused")

// config returns the configuration of the handshake.
func (c *client) config() *gossh.ServerConfig {
	config := &gossh.ServerConfig{
		Config: algorithms(), ServerVersion: version, MaxAuthTries: maxTries, PublicKeyAuthAlgorithms: clientKeys(),
		PasswordCallback: func(m gossh.ConnMetadata, password []byte) (*gossh.Permissions, error) {
			answer := time.Now().Add(failTime)
			if len(password) > maxPassword {
				return nil, c.failed(answer)
			}
			login, ok := c.gate.Password(m.User(), string(password))
			if !ok {
				return nil, c.failed(answer)
			}
			return c.loggedIn(login, byPassword)
		},
		// Whether a key is known is decided after the client has signed: otherwise anybody could ask with the public key of another
		// person which boxes that person uses.
		PublicKeyCallback: func(gossh.ConnMetadata, gossh.PublicKey) (*gossh.Permissions, error) {
			return &gossh.Permissions{}, nil
		},
		VerifiedPublicKeyCallback: func(m gossh.ConnMetadata, key gossh.PublicKey, _ *gossh.Permissions, _ string) (*gossh.Permissions, error) {
			answer := time.Now().Add(keyFailTime)
			login, ok := c.gate.PublicKey(m.User(), key)
			if !ok {
				c.tried = true
				c.await(answer)
				return nil, errRefused
			}
			return c.loggedIn(login, byPublicKey)
		},
	}
	config.AddHostKey(sshflow.Paced(c.ctx, c.server.cfg.HostKey))
	return config
}

// loggedIn ends a login that succeeded.
func (c *client) loggedIn(login Login, how string) (*gossh.Permissions, error) {
	c.login, c.how = login, how
	return &gossh.Permissions{}, nil
}

// await waits until a time, or until the connection is cut.
func (c *client) await(t time.Time) {
	select {
	case <-time.After(time.Until(t)):
	case <-c.ctx.Done():
	}
}

// failed delays the answer to a wrong password until a time, while the client still counts as a stranger. Beyond mostFailing clients,
// the connection is closed without an answer instead.
func (c *client) failed(answer time.Time) error {
	c.tried = true
	select {
	case c.server.failing <- struct{}{}:
		defer func() { <-c.server.failing }()
		c.await(answer)
	default:
		c.cut()
	}
	return errRefused
}

// handshake logs the client in. It returns false if that fails.
func (c *client) handshake() (conn *gossh.ServerConn, channels <-chan gossh.NewChannel, requests <-chan *gossh.Request, ok bool) {
	defer time.AfterFunc(c.server.loginTime, c.cut).Stop()
	opening := c.flow.AddStream() // until the login, all data counts as backlog
	defer opening.Remove()
	defer func() {
		if v := recover(); v != nil { // a second key exchange can meet the first one's end, see [boxgate/proxy/ssh]
			recovery.Log(c.server.cfg.Log, "panic in a handshake of SSH", "", v)
			conn, ok = nil, false
		}
		if !ok {
			c.server.logins.WithLabelValues(refused).Inc()
			if c.tried {
				c.gate.Refused(addressOf(c.conn))
			}
		}
	}()
	conn, channels, requests, err := gossh.NewServerConn(c.flow, c.config())
	if err != nil || c.login == nil {
		return nil, nil, nil, false
	}
	return conn, channels, requests, true
}

// admit counts the connection for its key. It returns false if the key has too many, or the login has just ended.
func (c *client) admit() bool {
	claim, err := c.login.Count(c.conn)
	if err != nil {
		c.server.logins.WithLabelValues(overLimit).Inc()
		return false
	}
	c.flow.SetClaim(claim)
	if !c.server.enter(c) {
		return false
	}
	if !c.login.Valid() { // revoked before enter, so Recheck did not see the connection
		return false
	}
	c.server.logins.WithLabelValues(c.how).Inc()
	c.server.cfg.Log.Debug("a client has logged in over SSH", zap.String("box", string(c.login.Box())), zap.String("key", c.login.Key()), zap.String("remote", addressOf(c.conn)))
	return true
}

// addressOf returns the address of a client without its port.
func addressOf(conn net.Conn) string {
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap().String()
	}
	return "unknown"
}

// strangerClaim is the account of a client that is not logged in: no memory beyond [sshflow.Free]. A client that sends more is cut, since
// a flow that waits for memory notices neither its deadline nor the end of the connection.
type strangerClaim struct{ c *client }

// Grow implements [sshflow.Claim].
func (s strangerClaim) Grow(int) bool {
	go s.c.cut() // the caller holds the lock of the flow
	return false
}

// Shrink implements [sshflow.Claim].
func (strangerClaim) Shrink(int) {}

// Close implements [sshflow.Claim].
func (strangerClaim) Close() {}

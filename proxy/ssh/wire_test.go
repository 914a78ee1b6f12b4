package ssh

import (
	"bufio"
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"math/big"
	"net"
	"strings"

	gossh "golang.org/x/crypto/ssh"
)

// wire is one end of SSH (RFC 4253) that sends arbitrary packets after the key exchange, which a library would not.
type wire struct {
	conn      net.Conn
	in        *bufio.Reader
	send, get *sealed // nil before the key exchange
}

// sealed is one direction of aes128-gcm@openssh.com (RFC 5647).
type sealed struct {
	aead cipher.AEAD
	iv   [12]byte
}

// next returns the nonce of the next packet.
func (s *sealed) next() []byte {
	iv := s.iv
	binary.BigEndian.PutUint64(s.iv[4:], binary.BigEndian.Uint64(s.iv[4:])+1)
	return iv[:]
}

const wireVersion = "SSH-2.0-wire"

// exchangeKeys performs the curve25519-sha256 key exchange. Only a server passes a key.
func exchangeKeys(conn net.Conn, key gossh.Signer) (*wire, error) {
	w := &wire{conn: conn, in: bufio.NewReader(conn)}
	if _, err := io.WriteString(conn, wireVersion+"\r\n"); err != nil {
		return nil, err
	}
	line, err := w.in.ReadString('\n')
	if err != nil {
		return nil, err
	}
	own := kexInit()
	if err := w.write(own); err != nil {
		return nil, err
	}
	theirs, err := w.read()
	if err != nil {
		return nil, err
	}
	versions, inits := [2]string{wireVersion, strings.TrimRight(line, "\r\n")}, [2][]byte{own, theirs}
	if key != nil {
		versions[0], versions[1], inits[0], inits[1] = versions[1], versions[0], inits[1], inits[0]
	}
	return w, w.agree(versions, inits, key)
}

// kexInit offers one algorithm of each kind, and any host key.
func kexInit() []byte {
	m := append([]byte{20}, make([]byte, 16)...)
	_, _ = rand.Read(m[1:])
	for _, list := range []string{"curve25519-sha256", "ecdsa-sha2-nistp256,ssh-ed25519", "aes128-gcm@openssh.com", "aes128-gcm@openssh.com", "hmac-sha2-256", "hmac-sha2-256", "none", "none", "", ""} {
		m = text(m, []byte(list))
	}
	return append(m, 0, 0, 0, 0, 0)
}

// agree derives the shared secret; versions and inits are those of the client, then of the server.
func (w *wire) agree(versions [2]string, inits [2][]byte, key gossh.Signer) error {
	private, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	var points [2][]byte
	var hostKey []byte
	mine, theirs := 0, 1
	if key != nil {
		mine, theirs, hostKey = 1, 0, key.PublicKey().Marshal()
	}
	points[mine] = private.PublicKey().Bytes()
	if key == nil {
		if err := w.write(text([]byte{30}, points[0])); err != nil {
			return err
		}
	}
	m, err := w.read()
	if err != nil || len(m) == 0 || m[0] != byte(30+theirs) {
		return errors.Join(err, errors.New("no key exchange"))
	}
	rest := m[1:]
	if key == nil {
		hostKey, rest = cutText(rest)
	}
	points[theirs], _ = cutText(rest)
	point, err := ecdh.X25519().NewPublicKey(points[theirs])
	if err != nil {
		return err
	}
	shared, err := private.ECDH(point)
	if err != nil {
		return err
	}
	secret := number(nil, new(big.Int).SetBytes(shared))
	var hashed []byte
	for _, part := range [][]byte{[]byte(versions[0]), []byte(versions[1]), inits[0], inits[1], hostKey, points[0], points[1]} {
		hashed = text(hashed, part)
	}
	sum := sha256.Sum256(append(hashed, secret...))
	if key != nil {
		signature, err := key.Sign(rand.Reader, sum[:])
		if err != nil {
			return err
		}
		if err := w.write(text(text(text([]byte{31}, hostKey), points[1]), gossh.Marshal(signature))); err != nil {
			return err
		}
	}
	return w.take(secret, sum[:], key != nil)
}

// take activates the keys (RFC 4253, 7.2).
func (w *wire) take(secret, sum []byte, server bool) error {
	if err := w.write([]byte{21}); err != nil {
		return err
	}
	if m, err := w.read(); err != nil || !bytes.Equal(m, []byte{21}) {
		return errors.Join(err, errors.New("no new keys"))
	}
	direction := func(iv, key byte) *sealed {
		derived := func(letter byte) []byte {
			of := sha256.Sum256(append(append(append(append([]byte(nil), secret...), sum...), letter), sum...))
			return of[:]
		}
		block, _ := aes.NewCipher(derived(key)[:16]) // a valid length
		aead, _ := cipher.NewGCM(block)
		return &sealed{aead, [12]byte(derived(iv)[:12])}
	}
	w.send, w.get = direction('A', 'C'), direction('B', 'D')
	if server {
		w.send, w.get = w.get, w.send
	}
	return nil
}

// write sends a packet.
func (w *wire) write(payload []byte) error {
	padding, head := 4, 5
	if w.send != nil {
		head = 1 // the length is not encrypted
	}
	for (head+len(payload)+padding)%16 != 0 {
		padding++
	}
	packet := append([]byte{byte(padding)}, payload...)
	packet = append(packet, make([]byte, padding)...)
	length := binary.BigEndian.AppendUint32(nil, uint32(len(packet)))
	if w.send != nil {
		packet = w.send.aead.Seal(nil, w.send.next(), packet, length)
	}
	_, err := w.conn.Write(append(length, packet...))
	return err
}

// read receives a packet.
func (w *wire) read() ([]byte, error) {
	length := make([]byte, 4)
	if _, err := io.ReadFull(w.in, length); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(length))
	if w.get != nil {
		n += 16
	}
	if n < 2 || n > 1<<20 {
		return nil, errors.New("a packet of an odd length")
	}
	packet := make([]byte, n)
	if _, err := io.ReadFull(w.in, packet); err != nil {
		return nil, err
	}
	if w.get != nil {
		var err error
		if packet, err = w.get.aead.Open(nil, w.get.next(), packet, length); err != nil {
			return nil, err
		}
	}
	if len(packet) < 1+int(packet[0]) {
		return nil, errors.New("a packet of padding alone")
	}
	return packet[1 : len(packet)-int(packet[0])], nil
}

// text appends a string of SSH (RFC 4251, 5).
func text(m, s []byte) []byte {
	return append(binary.BigEndian.AppendUint32(m, uint32(len(s))), s...)
}

func cutText(m []byte) (s, rest []byte) {
	if len(m) < 4 || int(binary.BigEndian.Uint32(m)) > len(m)-4 {
		return nil, nil
	}
	n := 4 + int(binary.BigEndian.Uint32(m))
	return m[4:n], m[n:]
}

// number appends a positive mpint.
func number(m []byte, n *big.Int) []byte {
	b := n.Bytes()
	if len(b) > 0 && b[0] >= 0x80 {
		b = append([]byte{0}, b...)
	}
	return text(m, b)
}

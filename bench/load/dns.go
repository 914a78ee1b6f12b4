package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// lost is the time after which an unanswered query counts as an error.
const lost = 3 * time.Second

// dns sends queries over one UDP socket, keeping a fixed number of them outstanding.
func (g *generator) dns(w *worker) error {
	c, err := net.Dial("udp", g.Dial)
	if err != nil {
		return err
	}
	defer c.Close()
	q := &asker{g: g, worker: w, c: c}
	for range g.Streams {
		if err := q.send(); err != nil {
			return err
		}
	}
	for q.open > 0 && !g.aborted() {
		if err := q.receive(); err != nil {
			return err
		}
	}
	return nil
}

// asker sends queries over one socket.
type asker struct {
	g      *generator
	worker *worker
	c      net.Conn
	open   int
	next   uint16
	begun  [1 << 16]time.Time // by ID; zero: no such query is outstanding
	buf    [4096]byte
}

func (q *asker) send() error {
	if !q.g.claimUnit() {
		return nil
	}
	for q.next++; !q.begun[q.next].IsZero(); q.next++ {
		continue
	}
	name := q.g.Name
	if strings.Contains(name, "%") {
		name = fmt.Sprintf(name, q.g.First+(q.g.name.Add(1)-1)%max(q.g.Names, 1))
	}
	q.begun[q.next] = time.Now()
	q.open++
	_, err := q.c.Write(appendQuery(q.buf[:0], q.next, name))
	return err
}

// receive handles one answer and sends the next query.
func (q *asker) receive() error {
	_ = q.c.SetReadDeadline(time.Now().Add(lost))
	n, err := q.c.Read(q.buf[:])
	if err != nil {
		return fmt.Errorf("%d queries without an answer: %w", q.open, err)
	}
	if n < 12 {
		return errors.New("an answer without a header")
	}
	id := binary.BigEndian.Uint16(q.buf[:])
	if q.begun[id].IsZero() {
		return fmt.Errorf("an answer to no query: %d", id)
	}
	if err := verifyAnswer(q.buf[:n], q.g.Refused); err != nil {
		return err
	}
	q.g.recordUnit(q.worker, q.begun[id])
	q.begun[id] = time.Time{}
	q.open--
	return q.send()
}

// verifyAnswer requires an address or, if the name must be refused, a refusal or the address of a sink.
func verifyAnswer(message []byte, refused bool) error {
	code, answers := message[3]&0xf, binary.BigEndian.Uint16(message[6:])
	if message[2]&0x80 == 0 {
		return errors.New("not an answer")
	}
	if code == dns.RcodeSuccess && answers > 0 || refused && (code == dns.RcodeNameError || code == dns.RcodeRefused) {
		return nil
	}
	return fmt.Errorf("%s with %d records", dns.RcodeToString[int(code)], answers)
}

// appendQuery appends a recursive query for the IPv4 addresses of a name.
func appendQuery(b []byte, id uint16, name string) []byte {
	b = binary.BigEndian.AppendUint16(b, id)
	b = append(b, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		b = append(b, byte(len(label)))
		b = append(b, label...)
	}
	return append(b, 0, 0, 1, 0, 1)
}

// resolve queries the addresses of a name.
func resolve(ctx context.Context, server, name string) error {
	m := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA)
	client := dns.Client{Timeout: lost}
	answer, _, err := client.ExchangeContext(ctx, m, server)
	if err != nil {
		return err
	}
	if answer.Rcode != dns.RcodeSuccess || len(answer.Answer) == 0 {
		return fmt.Errorf("%s with %d records", dns.RcodeToString[answer.Rcode], len(answer.Answer))
	}
	return nil
}

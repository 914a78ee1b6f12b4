package sshd

import (
	"context"
	"io"
	"net"
	"sync"

	gossh "golang.org/x/crypto/ssh"

	"boxgate/internal/sshflow"
)

// maxPorts is the maximum number of ports of the box that one connection uses.
const maxPorts = 16

// portUse is the use of a port, from the first connection to it until the client has gone.
type portUse struct {
	once sync.Once
	port Port
	err  error
}

// errorPorts refuses one port more.
type errorPorts struct{}

// Error returns the text for the client.
func (errorPorts) Error() string {
	return "the connection uses as many ports of the box as it may; connect again"
}

// use returns the use of a port, which the first call begins.
func (c *client) use(port uint16) (Port, error) {
	c.mu.Lock()
	u := c.ports[port]
	if u == nil {
		if len(c.ports) >= maxPorts {
			c.mu.Unlock()
			return nil, errorPorts{}
		}
		u = &portUse{}
		c.ports[port] = u
	}
	c.mu.Unlock()
	u.once.Do(func() { u.port, u.err = c.login.Forward(c.ctx, port) })
	if u.err != nil { // another attempt may succeed
		c.mu.Lock()
		if c.ports[port] == u {
			delete(c.ports, port)
		}
		c.mu.Unlock()
	}
	return u.port, u.err
}

// closePorts ends the uses of all ports.
func (c *client) closePorts() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range c.ports {
		if u.port != nil {
			u.port.Close()
		}
	}
	c.ports = nil
}

// forward connects a channel to a port of the box.
func (c *client) forward(channel gossh.NewChannel) {
	host, number, ok := parseForward(channel.ExtraData())
	if !ok {
		_ = channel.Reject(gossh.Prohibited, "boxgate: only ports of the box's own loopback interface are reached: localhost, 127.0.0.1 or ::1")
		return
	}
	port, err := c.use(number)
	var server net.Conn
	if err == nil {
		server, err = port.Dial(c.ctx, host)
	}
	if err != nil {
		_ = channel.Reject(gossh.ConnectionFailed, "boxgate: "+printable(err.Error()))
		return
	}
	defer server.Close()
	defer context.AfterFunc(c.ctx, func() { _ = server.Close() })()
	client, requests, err := channel.Accept()
	if err != nil {
		return
	}
	c.relay(client, requests, server)
}

// relay moves the bytes of both directions until the client has closed its channel.
func (c *client) relay(client gossh.Channel, requests <-chan *gossh.Request, server net.Conn) {
	from := input{client, c.flow.AddStream()}
	defer from.stream.Remove()
	var both sync.WaitGroup
	both.Go(c.contained(func() {
		_, _ = io.Copy(server, from)
		if half, ok := server.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
		drain(client, from.stream)
	}))
	both.Go(c.contained(func() { c.drainExtended(client) }))
	both.Go(c.contained(func() {
		_, _ = io.Copy(client, onlyReader{server})
		_ = client.CloseWrite()
		_ = server.Close() // the server has ended or the client reads no more
		_ = client.Close()
	}))
	sshflow.ForEach(c.flow, requests, func(r *gossh.Request) { _ = r.Reply(false, nil) })
	_ = server.Close()
	_ = client.Close()
	both.Wait()
}

// onlyReader hides the methods with which io.Copy would bypass its buffer.
type onlyReader struct{ io.Reader }

// drainExtended discards the extended data of a channel, which no command reads.
func (c *client) drainExtended(channel gossh.Channel) {
	extended := c.flow.AddStream()
	defer extended.Remove()
	drain(channel.Stderr(), extended)
}

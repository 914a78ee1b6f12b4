package urls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/state"
	"boxgate/ingress"
	"boxgate/policy"
	"boxgate/policy/name"
	quotas "boxgate/quota"
	"boxgate/store"
)

// sharedPorts are the ports of a box that are shared as a whole.
type sharedPorts struct {
	base   ingress.Target // of all ports: without a port
	except []uint16
	https  []uint16
}

// portPattern stands for the port in the Host field that applications see.
const portPattern = "${PORT}"

// target returns the target of a port, if it is shared.
func (s sharedPorts) target(port uint16) (t ingress.Target, ok bool) {
	if slices.Contains(s.except, port) {
		return ingress.Target{}, false
	}
	t = s.base
	t.Addr = netip.AddrPortFrom(t.Addr.Addr(), port)
	if t.Host != "" {
		t.Host = strings.ReplaceAll(t.Host, portPattern, strconv.Itoa(int(port)))
	}
	if slices.Contains(s.https, port) {
		t.TLS, t.Protocol = true, ingress.HTTP1
	}
	return t, true
}

// sharedTarget converts stored shared ports for the table. Every change has another ID.
func sharedTarget(p store.SharedPorts, addr netip.Addr) sharedPorts {
	return sharedPorts{
		base: ingress.Target{
			ID:  fmt.Sprintf("%s-ports-%d", p.Box, p.SharedAt.UnixNano()),
			Box: p.Box, Owner: p.Owner, Addr: netip.AddrPortFrom(addr, 0), Host: p.Host,
			Auth: ingress.Auth{Open: p.Token == nil, Bearer: (*ingress.Digest)(p.Token)},
		},
		except: p.Except, https: p.HTTPS,
	}
}

// Ports implements the Host of [boxgate/api/urls].
func (u *Service) Ports(_ context.Context, id policy.BoxID) (api.Ports, error) {
	if _, err := u.config.Boxes.Find(id); err != nil {
		return api.Ports{}, err
	}
	p, err := u.config.Store.Ports(id)
	if errors.Is(err, store.ErrNotFound) {
		return api.Ports{}, errNotShared
	}
	return u.portsView(p), err
}

var errNotShared = api.Errorf(api.ErrNotFound, "the ports of this box are not shared")

func (u *Service) portsView(p store.SharedPorts) api.Ports {
	return api.Ports{
		URL: u.urlAt(fmt.Sprintf("{port}-%s.%s", p.Box, u.config.Ingress.Domain), ""), Public: p.Token == nil, Except: p.Except, Host: p.Host, HTTPS: p.HTTPS, SharedAt: p.SharedAt,
		TokenHeaders: u.config.TokenFields, Fingerprint: p.Fingerprint,
	}
}

// SharePorts implements the Host of [boxgate/api/urls].
func (u *Service) SharePorts(ctx context.Context, id policy.BoxID, req api.PortsRequest) (api.Ports, error) {
	if err := u.permitsPorts(api.CallerOf(ctx), req.Public); err != nil {
		return api.Ports{}, err
	}
	b, err := u.config.Boxes.Lock(id)
	if err != nil {
		return api.Ports{}, err
	}
	defer b.Unlock()
	if b.IsRemote() {
		return api.Ports{}, api.Errorf(api.ErrConflict, "box %s runs elsewhere: the gateway cannot connect to its ports", id)
	}
	old, err := u.config.Store.Ports(id)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		u.config.Log.Warn("the shared ports of a box cannot be read, and are replaced", zap.String("box", string(id)), zap.Error(err))
	}
	record := store.SharedPorts{Box: id, Except: req.Except, Host: req.Host, HTTPS: req.HTTPS, SharedAt: time.Now()}
	if caller := api.CallerOf(ctx); caller.Key != store.OperatorKey {
		record.Owner = caller.Key
	}
	token := ""
	switch {
	case req.Public:
	case req.KeepToken && old.Token != nil:
		record.Token, record.Fingerprint = old.Token, old.Fingerprint
	case req.KeepToken:
		return api.Ports{}, change.InvalidAt("/keep_token", "the ports of this box have no token yet")
	default:
		token = cmp.Or(req.Token, randomHex(32))
		digest := store.KeyHash(ingress.BearerDigest(token))
		record.Token, record.Fingerprint = &digest, api.TokenFingerprint(token)
	}
	count := int64(1)
	if err == nil && old.Owner == record.Owner {
		count = 0
	}
	done, err := u.config.Holdings.Reserve(ctx, quotas.URLs, count)
	if err != nil {
		return api.Ports{}, err
	}
	defer done()
	if err := u.config.Store.SetPorts(record); err != nil {
		return api.Ports{}, change.NotStored(u.config.Log, "the shared ports could not be stored, nothing was changed", err)
	}
	u.replacePorts(id, func(string) { u.config.Table.share(sharedTarget(record, b.V4)) })
	view := u.portsView(record)
	if token != "" {
		view.Token = name.NewSecret(token)
	}
	return view, nil
}

// permitsPorts returns an error if the configuration does not allow a caller to share the ports of a box.
func (u *Service) permitsPorts(caller api.Caller, public bool) error {
	c := u.config.Ingress
	switch {
	case c.HTTPS == "" && c.HTTP == "":
		return api.Errorf(api.ErrForbidden, "public URLs are turned off: set ingress.https")
	case !c.CoversAllNames():
		return api.Errorf(api.ErrForbidden, "sharing all ports of a box needs a certificate for all names below ingress.domain: set ingress.tls.acme.dns01, or use another ingress.tls.mode")
	case public && !c.PublicPorts:
		return api.Errorf(api.ErrForbidden, "this gateway shares ports only with a token: leave out access, or set ingress.public_ports")
	case public && c.RequireAuth:
		return api.Errorf(api.ErrForbidden, "this gateway requires authentication on public URLs (ingress.require_auth): leave out access")
	case public && caller.Role != api.RoleAdmin && caller.Role != api.RoleCreator:
		return api.Errorf(api.ErrForbidden, "an API key of a single box shares its ports only with a token")
	}
	return nil
}

// UnsharePorts implements the Host of [boxgate/api/urls].
func (u *Service) UnsharePorts(_ context.Context, id policy.BoxID) error {
	b, err := u.config.Boxes.Lock(id)
	if err != nil {
		return err
	}
	defer b.Unlock()
	if err := u.config.Store.DeletePorts(id); errors.Is(err, store.ErrNotFound) {
		return errNotShared
	} else if err != nil {
		return change.NotStored(u.config.Log, "the end of the sharing could not be stored; the ports stay shared", err)
	}
	u.replacePorts(id, u.config.Table.RemoveID)
	return nil
}

// replacePorts changes the shared ports of a box in the table, in one step: in between, an application could get the token. Then it cuts
// their visitors. replace gets the ID of the present ones, or "".
func (u *Service) replacePorts(id policy.BoxID, replace func(old string)) {
	old := u.config.Table.sharedOf(id)
	replace(old)
	if old != "" {
		u.closeURL(old)
	}
}

// recoverPorts loads the stored shared ports of a box. Ports that are open to everyone stay closed while the configuration does not
// permit them.
func (u *Service) recoverPorts(b *state.Box) error {
	p, err := u.config.Store.Ports(b.ID)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if p.Token == nil && (!u.config.Ingress.PublicPorts || u.config.Ingress.RequireAuth) {
		u.config.Log.Warn("the ports of a box were shared with everyone; the configuration no longer permits that, and they are closed", zap.String("box", string(b.ID)))
		return nil
	}
	u.config.Table.share(sharedTarget(p, b.V4))
	return nil
}

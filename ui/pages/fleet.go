package pages

import (
	"net/url"
	"time"

	"boxgate/api"
)

// FleetRoutes lists the pages of a gateway that is in a fleet.
func FleetRoutes() []Route {
	return []Route{
		{"GET " + Prefix + "fleet", fleetPage},
		{"POST " + Prefix + "fleet/{host}/cordon", cordon("cordon")},
		{"POST " + Prefix + "fleet/{host}/uncordon", cordon("uncordon")},
	}
}

// fleetState is the data of the page of the fleet.
type fleetState struct {
	api.Fleet
	Rows      []fleetHost
	Running   int // hosts that make boxes
	BoxCount  int // on all present hosts
	MayCordon bool
	Pager     Pager
	Form      Form
}

// fleetHost is a row of the page.
type fleetHost struct {
	api.FleetHost
	IsOwn bool // the host of this dashboard
}

// Path returns the path of the forms of a host.
func (h fleetHost) Path() string { return pathTo("fleet", h.ID) }

// BoxesPath returns the path of the boxes of a host, which are found by their IDs.
func (h fleetHost) BoxesPath() string { return Prefix + "?" + url.Values{"q": {h.ID}}.Encode() }

// Seen returns when the gateway of this dashboard last knew the host to serve: for a host with a lease now, otherwise the time of its last
// answer. Zero: not since this gateway started.
func (h fleetHost) Seen() time.Time {
	if h.Present || h.IsOwn {
		return time.Now()
	}
	return h.Answered
}

// Lag returns how many seconds ago this host last knew the latest state of the fleet.
func (s fleetState) Lag() (seconds int) { return int(time.Since(s.Own.Current).Seconds()) }

// Lease returns the seconds of the lease that are left.
func (s fleetState) Lease() int { return int(s.Own.LeaseSeconds) }

func fleetPage(v *Visit) (View, error) { return showFleet(v, Form{}, 0) }

func showFleet(v *Visit, f Form, status int) (View, error) {
	data := fleetState{Form: f, MayCordon: v.is(api.RoleAdmin)}
	if err := v.get("/v2/fleet", &data.Fleet); err != nil {
		return View{}, err
	}
	if data.Own == nil {
		data.Own = &api.OwnHost{}
	}
	var rows []fleetHost
	for _, h := range data.Hosts {
		rows = append(rows, fleetHost{h, h.ID == data.Own.Host})
		if h.State == api.HostRunning {
			data.Running++
		}
		if h.Present {
			data.BoxCount += h.Boxes
		}
	}
	data.Rows, data.Pager = paged(v, rows)
	return View{Name: "fleet", Title: "Fleet", Section: "Fleet", Status: status, Data: data}, nil
}

// cordon returns the receiver of a form that has a host make no new boxes, or make them again.
func cordon(action string) func(*Visit) (View, error) {
	return func(v *Visit) (View, error) {
		path := "/v2/fleet/hosts/" + url.PathEscape(v.R.PathValue("host")) + "/" + action
		if err := v.send("POST", path, nil, nil); err != nil {
			f, status, err := v.refused(err)
			if err != nil {
				return View{}, err
			}
			return showFleet(v, f, status)
		}
		return View{Location: Prefix + "fleet"}, nil
	}
}

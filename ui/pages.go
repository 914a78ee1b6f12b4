package ui

import (
	"boxgate/ui/pages"
)

// pagesRoutes lists the pages of package pages.
func (u *UI) pagesRoutes() (list []route) {
	all := pages.Routes()
	if u.Fleet {
		all = append(all, pages.FleetRoutes()...)
	}
	for _, rt := range all {
		list = append(list, route{rt.Pattern, func(v *visit) (view, error) {
			got, err := rt.Serve(&pages.Visit{W: v.w, R: v.r, Caller: v.session.Caller, Client: v.client})
			if err != nil {
				return view{}, err
			}
			page := view{
				name: got.Name, title: got.Title, section: got.Section, status: got.Status, data: got.Data, location: got.Location, written: got.Written,
			}
			if got.Box != "" {
				_, page.box, err = v.box()
			}
			return page, err
		}})
	}
	return list
}

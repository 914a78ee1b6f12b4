// Package apitest is the rig of the tests of the API: [Host] keeps boxes in memory, and [Serve] serves some endpoints over it
// as package server does, without the rest of the API.
package apitest

// node-healer with one more provider.
package main

import (
	"github.com/csi-addons/node-healer/pkg/app"
	"github.com/csi-addons/node-healer/pkg/healer"

	"example.com/hello-csi/hello"
)

func main() {
	app.Main(app.Options{Version: "hello-1", Providers: []func(healer.Tools) healer.Provider{hello.New}})
}

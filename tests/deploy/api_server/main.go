// The API server of Kubernetes, for tests/deploy/test_api_server.py. `go install` takes no module with replacements, so
// the ones of k8s.io/kubernetes are repeated in go.mod.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }

// The SDK, which tests/broker/test_tracing_export.py loads before the receiver. It reads the variables OTEL_*.

import { NodeSDK } from "@opentelemetry/sdk-node";

new NodeSDK().start();

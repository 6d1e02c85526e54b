from bucketlab._engine import mx

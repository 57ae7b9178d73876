"""A small prediction service as many are: FastAPI, with a model of scikit-learn that is fitted at the start.

Knows nothing of checkpoints. Usage: app.py PORT
"""

import sys

import fastapi
import pandas
import uvicorn
from sklearn.linear_model import LinearRegression

app = fastapi.FastAPI()
_table = pandas.DataFrame({"x": range(1000)})
_model = LinearRegression().fit(_table[["x"]], 2 * _table["x"] + 1)


@app.get("/predict")
def predict(x: float):
    """y = 2x + 1, as the model has learned it."""
    return {"y": round(float(_model.predict(pandas.DataFrame({"x": [x]}))[0]), 6)}


def serve(port):
    """Until it is ended."""
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical", access_log=False)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
